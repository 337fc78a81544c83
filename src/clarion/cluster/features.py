"""The level of what is written into the cluster's store: up to it, everybody who takes part has to understand.

    feature-level    number; 1 where it is missing

Every version of Clarion knows levels up to its own (`FEATURE_LEVEL`), and brokers of different versions may run beside
each other for as long as it takes. The cluster's level stays until somebody raises it (UpdateFeatures), which needs all
brokers that are there to know the new one. From then on an older one is told to stay away. A level never falls: what
was written by it cannot be unwritten.
"""

from __future__ import annotations

from typing import Final

from clarion.cluster import schema
from clarion.cluster.changes import change, until_answered
from clarion.cluster.coordination import CoordinationStore, Put, StoreError, absent, unchanged
from clarion.cluster.image import ClusterImage
from clarion.cluster.schema import FIRST_LEVEL, LEVEL
from clarion.model.errors import ErrorCode, KafkaError

CLUSTER_FEATURE: Final = "clarion.version"  # as clients and tools see it


class FeatureLevelError(StoreError):
    """This version is too old for the cluster."""


async def check_level(store: CoordinationStore) -> None:
    """Before a broker takes part."""
    found = await until_answered(lambda: store.get(LEVEL))
    level = FIRST_LEVEL if found is None else int(found.value)
    if level > schema.FEATURE_LEVEL:
        raise FeatureLevelError(
            f"this cluster is at feature level {level}, and this version of Clarion knows levels up to "
            f"{schema.FEATURE_LEVEL}: start a newer one"
        )


def check_raise(image: ClusterImage, level: int) -> None:
    """Whether the cluster may be at this level. INVALID_UPDATE_VERSION says why not."""
    if level < image.feature_level:
        raise _refused(f"the cluster is at level {image.feature_level}, and a level cannot be lowered to {level}")
    if level > schema.FEATURE_LEVEL:
        raise _refused(f"this broker knows levels up to {schema.FEATURE_LEVEL}, not {level}")
    older = [one.id for one in image.brokers.values() if one.features < level]
    if older:
        raise _refused(f"broker {', '.join(map(str, older))} does not know level {level} yet: upgrade it first")


async def raise_level(store: CoordinationStore, level: int) -> None:
    """Whoever is faster has raised it too, perhaps further."""
    found = await until_answered(lambda: store.get(LEVEL))
    if found is None or int(found.value) < level:
        compare = absent(LEVEL) if found is None else unchanged(found)
        await change(store, [compare], [Put(LEVEL, str(level).encode())], lambda _: None)


def _refused(why: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_UPDATE_VERSION, why)
