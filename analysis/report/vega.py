"""The JavaScript libraries that draw the page's figures."""

import functools

from analysis.loading.processes import Sharing


@functools.cache
def begin() -> Sharing[None, str]:
    """Begin to make the libraries in another process: vl-convert takes a second, and blocks all threads meanwhile."""
    return Sharing(_libraries, [None], others=1)


@functools.cache
def libraries() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script, from vl-convert."""
    return begin().results()[0]


def _libraries(_: None) -> str:
    import vl_convert  # noqa: PLC0415 - 40 MB

    # Line ends and zero bytes that HTML's parser changes would change the hash.
    bundle = str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;"))
    return bundle.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "\\0")
