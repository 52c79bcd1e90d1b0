"""Tenants, projects and keys for demonstrations, made on first use and found again later.

Keys are shown once by the platform, so the local ones are remembered in a file that only this account can read.
"""

import logging
from pathlib import Path

import msgspec
from msgspec import Struct

from forebay.platform.errors import ApiError
from forebay.platform.local.paths import write_private
from forebay.platform.tenancy.principal import Scope
from forebay.platform.tenancy.records import Tenant
from forebay.platform.tenancy.service import Tenancy

logger = logging.getLogger(__name__)
SCOPES = (Scope.INFERENCE, Scope.USAGE_READ, Scope.DEBUG)


class Credentials(Struct, frozen=True):
    """What `demo.json` remembers of one tenant. Its repr leaves the key out."""

    tenant: str
    tenant_id: str
    project_id: str
    key_id: str
    key: str

    def __repr__(self) -> str:
        return f"<Credentials {self.tenant} {self.key_id}>"


async def ensure(service: Tenancy, name: str, memory: Path) -> Credentials:
    """The tenant `name` with a key that works: the remembered one, or a new one."""
    known = recall(memory)
    found = known.get(name)
    if found is not None and await _works(service, found):
        return found
    tenant = await _tenant(service, name)
    projects = await service.projects(tenant.id)
    project = projects[0] if projects else await service.create_project(tenant.id, "demo")
    issued = await service.create_key(project.id, tenant_id=tenant.id, name="demo", scopes=SCOPES)
    fresh = Credentials(name, tenant.id, project.id, issued.key.id, issued.secret)
    write_private(memory, msgspec.json.format(msgspec.json.encode({**known, name: fresh}), indent=2).decode() + "\n")
    return fresh


async def _tenant(service: Tenancy, name: str) -> Tenant:
    try:
        tenant = await service.find_tenant(name)
    except ApiError as error:
        if error.status != 404:
            raise
        return await service.create_tenant(name)
    return await service.resume_tenant(tenant.id) if tenant.status == "suspended" else tenant


async def _works(service: Tenancy, credentials: Credentials) -> bool:
    """The database may be another one than when the key was remembered."""
    try:
        key = await service.key(credentials.key_id, tenant_id=credentials.tenant_id)
        tenant = await service.tenant(credentials.tenant_id)
    except ApiError:
        return False
    return key.status == "active" and tenant.status == "active"


def recall(memory: Path) -> dict[str, Credentials]:
    try:
        return msgspec.json.decode(memory.read_bytes(), type=dict[str, Credentials])
    except FileNotFoundError:
        return {}
    except msgspec.DecodeError:
        logger.warning("%s cannot be read; new keys are made", memory)
        return {}
