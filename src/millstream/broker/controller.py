"""View and controller in one, for code that has not been told them apart yet."""

from typing import TypeVar

from millstream.broker.cluster_view import ClusterView
from millstream.config.broker_config import BrokerConfig
from millstream.controller.active_controller import ActiveController, Decide
from millstream.metadata.image import MetadataImage

R = TypeVar("R")


class Controller:
    def __init__(self, view: ClusterView, active: ActiveController) -> None:
        self._view = view
        self._active = active

    @property
    def image(self) -> MetadataImage:
        return self._view.image

    @property
    def config(self) -> BrokerConfig:
        return self._view.config

    async def decide(self, decide: "Decide[R]") -> tuple[R, ...]:
        return await self._active.decide(decide)
