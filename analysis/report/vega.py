"""The JavaScript libraries that draw the page's figures."""

import functools
from concurrent.futures import Future, ThreadPoolExecutor


@functools.cache
def libraries() -> "Future[str]":
    """Vega, Vega-Lite and Vega-Embed as one script, from vl-convert.

    Another thread makes the script, because vl-convert takes a second for it. The first call starts the thread.
    """
    return ThreadPoolExecutor(max_workers=1).submit(_libraries)


def _libraries() -> str:
    import vl_convert  # noqa: PLC0415 - 40 MB

    # Line ends and zero bytes that HTML's parser changes would change the hash.
    bundle = str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;"))
    return bundle.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "\\0")
