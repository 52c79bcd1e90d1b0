"""`/v1/models`: the catalogue as this project sees it."""

from typing import Any

from litestar import Controller, get
from litestar.di import NamedDependency
from litestar.params import FromPath

from forebay.platform.catalogue import Entry
from forebay.platform.service import Service
from forebay.platform.tenancy.auth import require
from forebay.platform.tenancy.principal import Principal, Scope


class ModelsController(Controller):
    path = "/v1/models"

    @get("/", sync_to_thread=False)
    def list_models(self, service: NamedDependency[Service], principal: NamedDependency[Principal]) -> dict[str, Any]:
        require(principal, Scope.INFERENCE)
        cards = [
            _card(service, entry, name)
            for entry in service.catalogue.visible(principal)
            for name in (entry.model.name, *entry.model.aliases)
        ]
        return {"object": "list", "data": cards}

    @get("/{name:path}", sync_to_thread=False)
    def get_model(
        self, service: NamedDependency[Service], principal: NamedDependency[Principal], name: FromPath[str]
    ) -> dict[str, Any]:
        require(principal, Scope.INFERENCE)
        asked = name.lstrip("/")
        return _card(service, service.catalogue.resolve(asked, principal), asked)


def _card(service: Service, entry: Entry, name: str) -> dict[str, Any]:
    """OpenAI's model object; `max_model_len` is vLLM's addition, which clients use to size prompts."""
    model = entry.model
    return {
        "id": name,
        "object": "model",
        "created": 0,
        "owned_by": model.owned_by,
        "max_model_len": model.context_length or service.router.reading(entry.pool.name).context_length,
        **({"root": model.name} if name != model.name else {}),
    }
