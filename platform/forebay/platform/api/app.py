"""The Litestar application over a running service."""

import logging
from typing import Any

from litestar import Litestar, Request, Response
from litestar.di import Provide
from litestar.exceptions import HTTPException
from litestar.handlers import ASGIRouteHandler
from litestar.types import ControllerRouterHandler

from forebay.metering import Books, Ledger, Pricing, Statements
from forebay.platform.api.admin import ADMIN_CONTROLLERS
from forebay.platform.api.health import HealthController
from forebay.platform.api.inference import new_request_id
from forebay.platform.api.ledger import LedgerController
from forebay.platform.api.limits import LIMIT_CONTROLLERS
from forebay.platform.api.models import ModelsController
from forebay.platform.api.pricing import PRICING_CONTROLLERS
from forebay.platform.api.statements import STATEMENT_CONTROLLERS
from forebay.platform.api.stripe import stripe_webhook
from forebay.platform.api.usage import UsageController
from forebay.platform.errors import ApiError, invalid
from forebay.platform.service import Service
from forebay.platform.tenancy.auth import Authenticator
from forebay.platform.tenancy.keys import without_secrets
from forebay.platform.tenancy.principal import Principal
from forebay.platform.tenancy.service import Tenancy
from forebay.platform.warm.route import snapshot_route

log = logging.getLogger(__name__)
_ADMIN_BODY_LIMIT = 1 << 20


def create_app(service: Service) -> Litestar:
    """Everything the front door answers, in OpenAI's shape, errors included."""
    inference: list[ASGIRouteHandler] = service.inferences.routes()
    controllers: list[ControllerRouterHandler] = [
        HealthController,
        ModelsController,
        UsageController,
        LedgerController,
        *ADMIN_CONTROLLERS,
        *LIMIT_CONTROLLERS,
        *PRICING_CONTROLLERS,
        *STATEMENT_CONTROLLERS,
        stripe_webhook,
    ]
    return Litestar(
        [*inference, *controllers, snapshot_route(service)],
        dependencies={
            "service": Provide(lambda: service, sync_to_thread=False),
            "principal": Provide(_principal_of(service.auth)),
            "tenancy": Provide(lambda: service.tenancy, sync_to_thread=False),
            "ledger": Provide(lambda: service.ledger, sync_to_thread=False),
            "statements": Provide(lambda: service.statements, sync_to_thread=False),
            "pricing": Provide(lambda: service.pricing, sync_to_thread=False),
            "books": Provide(lambda: service.books, sync_to_thread=False),
        },
        signature_namespace={
            "Service": Service,
            "Principal": Principal,
            "Tenancy": Tenancy,
            "Ledger": Ledger,
            "Pricing": Pricing,
            "Statements": Statements,
            "Books": Books,
        },
        exception_handlers={
            ApiError: _api_error,
            HTTPException: _http_error,
            Exception: _fault,
        },
        after_request=_with_request_id,
        request_max_body_size=_ADMIN_BODY_LIMIT,
        openapi_config=None,
        logging_config=None,
    )


def _principal_of(auth: Authenticator) -> Any:
    async def principal(request: Request[Any, Any, Any]) -> Principal:
        return await auth.identify(dict(request.scope["headers"]))

    return principal


def _with_request_id(response: Response[Any]) -> Response[Any]:
    """Every answer has one; errors and inference set theirs themselves."""
    response.headers.setdefault("x-request-id", new_request_id())
    return response


def _respond(error: ApiError, request_id: str | None = None) -> Response[bytes]:
    headers = {"x-request-id": request_id or new_request_id(), **error.headers}
    return Response(error.body(), status_code=error.status, media_type="application/json", headers=headers)


def _api_error(_: Request[Any, Any, Any], error: ApiError) -> Response[bytes]:
    return _respond(error)


def _http_error(request: Request[Any, Any, Any], error: HTTPException) -> Response[bytes]:
    """Litestar's own refusals: unknown routes, wrong methods, bodies that do not fit their type."""
    if error.status_code == 404:
        text = f"Unknown request URL: {request.method} {request.scope['path'][:200]}. See /v1/models."
        return _respond(ApiError(404, "unknown_url", text, type="invalid_request_error"))
    if error.status_code == 405:
        text = f"Not allowed to {request.method} on {request.scope['path'][:200]}."
        return _respond(ApiError(405, "method_not_allowed", text, type="invalid_request_error"))
    if error.status_code >= 500:
        return _fault(request, error)
    extra = error.extra if isinstance(error.extra, list) else []
    faults = "; ".join(f"{e.get('key', 'body')}: {e.get('message', '')}" for e in extra if isinstance(e, dict))
    detail = f"{error.detail.partition(' for ')[0]}: {faults}" if faults else error.detail
    code = "request_too_large" if error.status_code == 413 else "invalid_request"
    return _respond(invalid(detail[:1000], code=code, status=error.status_code))


def _fault(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    request_id = new_request_id()
    path = without_secrets(request.scope["path"])
    log.error("request %s (%s %s) failed", request_id, request.method, path, exc_info=error)
    text = "The server had an error while processing your request."
    return _respond(ApiError(500, "internal_error", text), request_id)
