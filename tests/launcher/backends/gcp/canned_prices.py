"""Cloud Billing's list of what Compute Engine charges for, in the documented form; some figures of us-central1, 2026.

https://cloud.google.com/billing/docs/reference/rest/v1/services.skus/list
"""

from collections.abc import Sequence
from typing import Any

from launcher.backends.gcp.price_list import PriceList, needed_skus

AMERICAS = ("us-central1", "us-east1", "us-west1")


def sku(
    sku_id: str,
    description: str,
    usd: float | Sequence[float],
    *,
    group: str,
    family: str = "Compute",
    usage: str = "OnDemand",
    unit: str = "h",
    regions: Sequence[str] = AMERICAS,
    currency: str = "USD",
) -> dict[str, Any]:
    """`usd`: of each tier."""
    tiers = [usd] if isinstance(usd, float | int) else usd
    nanos = [round(each * 1e9) for each in tiers]
    rates = [
        {
            "startUsageAmount": 744 * index,
            "unitPrice": {"currencyCode": currency, "units": str(each // 10**9), "nanos": each % 10**9},
        }
        for index, each in enumerate(nanos)
    ]
    return {
        "name": f"services/6F81-5844-456A/skus/{sku_id}",
        "skuId": sku_id,
        "description": description,
        "category": {
            "serviceDisplayName": "Compute Engine",
            "resourceFamily": family,
            "resourceGroup": group,
            "usageType": usage,
        },
        "serviceRegions": list(regions),
        "pricingInfo": [
            {
                "summary": "",
                "pricingExpression": {
                    "usageUnit": unit,
                    "displayQuantity": 1,
                    "tieredRates": rates,
                    "baseUnit": "s",
                    "baseUnitConversionFactor": 3600,
                },
                "currencyConversionRate": 1,
                "effectiveTime": "2026-11-20T08:00:00.000Z",
            }
        ],
        "serviceProviderName": "Google",
        "geoTaxonomy": {"type": "MULTI_REGIONAL", "regions": list(regions)},
    }


SPOT: dict[str, Any] = {"usage": "Preemptible"}
STORAGE: dict[str, Any] = {"family": "Storage", "unit": "GiBy.mo"}
NETWORK: dict[str, Any] = {"family": "Network", "group": "IpAddress", "regions": ["global"]}
NETHERLANDS: dict[str, Any] = {"regions": ["europe-west4"]}

GPU = sku("88B8-C3ED-03F0", "Nvidia Tesla T4 GPU running in Americas", 0.35, group="GPU")
ATTACHED = "Nvidia Tesla T4 GPU attached to"
GPU_SPOT = sku("1A25-07A3-AB6D", f"{ATTACHED} Spot Preemptible VMs running in Americas", 0.21, group="GPU", **SPOT)
CORE = sku("2E27-4F75-95CD", "N1 Predefined Instance Core running in Americas", 0.031611, group="N1Standard")
MEMORY: dict[str, Any] = {"group": "N1Standard", "unit": "GiBy.h"}
RAM = sku("6C71-E844-38BC", "N1 Predefined Instance Ram running in Americas", 0.004237, **MEMORY)
DISK = sku("6AE1-525F-8B80", "Balanced PD Capacity", 0.10, group="SSD", **STORAGE)
# The first hours of a month are free.
ADDRESS = sku("C054-7F72-A02E", "External IP Charge on a Standard VM", (0.0, 0.005), **NETWORK)
SKUS: list[dict[str, Any]] = [
    GPU,
    GPU_SPOT,
    CORE,
    RAM,
    DISK,
    ADDRESS,
    sku("0001", "Spot Preemptible N1 Predefined Instance Core running in Americas", 0.0105, group="N1Standard", **SPOT),
    sku(
        "0002",
        "Spot Preemptible N1 Predefined Instance Ram running in Americas",
        0.0014,
        group="N1Standard",
        unit="GiBy.h",
        **SPOT,
    ),
    sku("4AF8-7C1F-39C4", "External IP Charge on a Spot Preemptible VM", 0.0025, **NETWORK),
    # Dearer in the Netherlands, each with its region's name.
    sku("0003", "Nvidia Tesla T4 GPU running in Netherlands", 0.48, group="GPU", **NETHERLANDS),
    sku("0004", "N1 Predefined Instance Core running in Netherlands", 0.0348, group="N1Standard", **NETHERLANDS),
    sku("0005", "N1 Predefined Instance Ram running in Netherlands", 0.00466, **MEMORY, **NETHERLANDS),
    sku("0006", "Balanced PD Capacity in Netherlands", 0.11, group="SSD", **STORAGE, **NETHERLANDS),
    # What is like them and is not meant.
    sku("0010", "Commitment v1: Nvidia Tesla T4 GPU in Americas for 1 Year", 0.22, group="GPU", usage="Commit1Yr"),
    sku("0011", f"{ATTACHED} DWS Defined Duration VMs running in Americas", 0.19, group="GPU"),
    sku("0012", "Reserved Nvidia Tesla T4 GPU running in Americas", 0.01, group="GPU"),
    sku("0013", "N1 Predefined Instance Core running in Americas", 0.01, group="N1Standard", usage="Commit1Yr"),
    sku("0014", "Custom Instance Core running in Americas", 0.033, group="CPU"),
    sku("0015", "N1 Predefined Instance Core running in Americas", 0.9, group="License"),
    sku("0016", "Regional Balanced PD Capacity", 0.20, group="SSD", **STORAGE),
    sku("0017", "Balanced PD Capacity", 0.3, group="SSD", family="Storage", unit="GiBy.h"),
    sku("0018", "Static Ip Charge", 0.01, **NETWORK),
    sku("0019", "Nvidia Tesla T4 GPU running in Mars", 9.0, group="GPU", regions=["mars-west1"]),
]


def price_list_of(documents: Any) -> PriceList:
    return PriceList(skus=tuple(needed_skus(documents)), read="2026-11-21")


TODAY = price_list_of(SKUS)
