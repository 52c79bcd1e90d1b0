"""The tables of revisions 0001, 0003 and 0005 as SQLAlchemy knows them; the migration is what creates them."""

from sqlalchemy import ARRAY, Column, DateTime, Float, LargeBinary, MetaData, Table, Text

metadata = MetaData()
_time = DateTime(timezone=True)

tenants = Table(
    "tenants",
    metadata,
    Column("id", Text, primary_key=True),
    Column("name", Text),
    Column("status", Text),
    Column("weight", Float),
    Column("created_at", _time),
    Column("suspended_at", _time),
    Column("deleted_at", _time),
)

projects = Table(
    "projects",
    metadata,
    Column("id", Text, primary_key=True),
    Column("tenant_id", Text),
    Column("name", Text),
    Column("models", ARRAY(Text)),
    Column("tiers", ARRAY(Text)),
    Column("created_at", _time),
)

api_keys = Table(
    "api_keys",
    metadata,
    Column("id", Text, primary_key=True),
    Column("kind", Text),
    Column("project_id", Text),
    Column("name", Text),
    Column("prefix", Text),
    Column("hash", LargeBinary),
    Column("pepper_id", Text),
    Column("scopes", ARRAY(Text)),
    Column("created_at", _time),
    Column("expires_at", _time),
    Column("revoked_at", _time),
    Column("replaced_by", Text),
)
