"""The settings of a server: flag, then environment, then TOML file, then default.

A setting ``http`` is ``TENANTQ_HTTP`` in the environment; one of a section, such as ``[shard] durability``, is
``TENANTQ_SHARD__DURABILITY``. Lists and tables in the environment are JSON.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from tenantq.cluster.settings import ClusterSettings, ShardsSettings
from tenantq.domain.compliance import ComplianceSettings
from tenantq.domain.containment import ContainmentRule
from tenantq.domain.names import RegionName
from tenantq.domain.plans import PlanSettings
from tenantq.domain.signup import SignupSettings
from tenantq.domain.validation import about, between, build, items
from tenantq.engine.settings import ShardSettings
from tenantq.errors import Invalid
from tenantq.gates.certificate import CertificateSettings
from tenantq.gates.json_web_token import JwtSettings
from tenantq.http.settings import HttpSettings
from tenantq.journal.checkpoint import AuditSettings
from tenantq.journal.export_settings import ExportSettings
from tenantq.kms.settings import KmsSettings
from tenantq.rpc.settings import RpcSettings
from tenantq.runtime.tls import TlsFiles
from tenantq.runtime.toml_files import read_toml
from tenantq.service.alerts.settings import AlertSettings
from tenantq.service.gate_settings import GateSettings
from tenantq.service.metrics.settings import MetricsSettings, TelemetrySettings
from tenantq.service.self_checks.check import CheckSettings
from tenantq.sqs.settings import SqsSettings
from tenantq.store.address import parse_store
from tenantq.store.postgres.settings import PostgresSettings
from tenantq.store.redis.settings import RedisSettings
from tenantq.vault.settings import VaultSettings

ENVIRONMENT: Final = "TENANTQ_"
RPC_DEFAULT: Final = "127.0.0.1:7071"
OFF: Final = "off"
ADMIN_TOKEN: Final = "TENANTQ_ADMIN_TOKEN"  # noqa: S105  # the name of the variable, not a secret
NOTICE_MS_MAX: Final = 3_600_000
_NOT_SETTINGS: Final = {
    ADMIN_TOKEN,
    "TENANTQ_CONFIG",
    "TENANTQ_URL",
    "TENANTQ_TOKEN",
    "TENANTQ_TO_TOKEN",
    "TENANTQ_PROFILE",
    "TENANTQ_TENANT",
    "TENANTQ_FLIPS",
    "TENANTQ_DEBUG",
}


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings of one server."""

    data_dir: Annotated[str, about("Data directory, created if missing.")] = "./tenantq-data"
    backup_dir: (
        Annotated[str, about("Directory of backups. Default: the data directory's name with -backups.")] | None
    ) = None
    backup_region: Annotated[RegionName, about("Region of the backup directory. Default: the shard's.")] | None = None
    http: Annotated[str, about("Address of the HTTP listener.")] = "127.0.0.1:7070"
    rpc: (
        Annotated[str, about(f'Address of the Cap\'n Proto listener, or "off". Default: {RPC_DEFAULT} if free.')] | None
    ) = None
    store: (
        Annotated[str, about("URL of a Redis or PostgreSQL store. Default: the embedded store in the data directory.")]
        | None
    ) = None
    log_level: Annotated[Literal["debug", "info", "warning", "error"], about("Least severe level to log.")] = "info"
    log_format: Annotated[Literal["text", "json"], about("Format of log lines.")] = "text"
    notice_ms: Annotated[
        int, between(0, NOTICE_MS_MAX, "How long /readyz reports a stop in advance while everything is still served.")
    ] = 0
    grace_ms: Annotated[int, between(0, 86_400_000, "How long a stop waits for requests in flight.")] = 30_000
    strict_tenancy: Annotated[
        bool, about("Refuse calls that name no tenant, neither explicitly nor by their credential.")
    ] = False
    shard: ShardSettings = ShardSettings()
    redis: RedisSettings = RedisSettings()
    postgres: PostgresSettings = PostgresSettings()
    shards: ShardsSettings = ShardsSettings()
    cluster: ClusterSettings = ClusterSettings()
    gates: GateSettings = GateSettings()
    plans: PlanSettings = PlanSettings()
    signups: SignupSettings = SignupSettings()
    alerts: AlertSettings = AlertSettings()
    containment: Annotated[
        tuple[ContainmentRule, ...], items(0, 64, "Reactions to alerts, as `[[containment]]` tables.")
    ] = ()
    metrics: MetricsSettings = MetricsSettings()
    compliance: ComplianceSettings = ComplianceSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    listener: HttpSettings = HttpSettings()
    rpc_listener: RpcSettings = RpcSettings()
    sqs: SqsSettings = SqsSettings()
    export: ExportSettings = ExportSettings()
    audit: AuditSettings = AuditSettings()
    checks: CheckSettings = CheckSettings()
    kms: KmsSettings = KmsSettings()
    vault: VaultSettings = VaultSettings()
    tls: TlsFiles | None = None  # none: plain HTTP
    jwt: JwtSettings | None = None  # none: JSON web tokens are not accepted
    certificates: CertificateSettings | None = None  # none: client certificates do not authenticate

    def __repr__(self) -> str:
        """Show everything except the store's URL, which may contain a password."""
        shown = (f"{name}={getattr(self, name)!r}" for name in self.__struct_fields__ if name != "store")
        return f"ServerSettings({', '.join(shown)})"


def load_settings(file: Path | None, environment: Mapping[str, str], flags: Mapping[str, Any]) -> ServerSettings:
    """Return the settings. Raises Invalid that names the setting, its source, and what is wrong."""
    given = read_toml(file, dict[str, Any], "settings file") if file is not None else {}
    _merge(given, _from_environment(environment))
    _merge(given, {name: value for name, value in flags.items() if value is not None})
    settings = build(ServerSettings, given)
    if settings.store is not None:
        parse_store(settings.store)
    split_address("http", settings.http)
    if settings.rpc is not None and settings.rpc != OFF:
        split_address("rpc", settings.rpc)
    return settings


def split_address(field: str, address: str) -> tuple[str, int]:
    """Return host and port of ``HOST:PORT`` or ``[HOST]:PORT``. Raises Invalid."""
    host, colon, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not (colon and host and port.isascii() and port.isdigit() and int(port) < 1 << 16):
        raise Invalid(f"{field}: {address[:80]!r} is not HOST:PORT")
    return host, int(port)


def shown_address(setting: str, address: str, port: int) -> str:
    """Return an address with its actual port."""
    host, _ = split_address(setting, address)
    return f"{f'[{host}]' if ':' in host else host}:{port}"


def shown_url(settings: ServerSettings, port: int) -> str:
    """Return the URL of a server."""
    scheme = "https" if settings.tls is not None else "http"
    return f"{scheme}://{shown_address('http', settings.http, port)}"


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for variable in sorted(environment):
        if not variable.startswith(ENVIRONMENT) or variable in _NOT_SETTINGS:
            continue
        path = variable.removeprefix(ENVIRONMENT).lower().split("__")
        kind = _kind_of(path)
        if kind is None:
            raise Invalid(f"environment: {variable} is no setting")
        place = found
        for section in path[:-1]:
            place = place.setdefault(section, {})
        place[path[-1]] = _parsed(variable, environment[variable], kind)
    return found


def _kind_of(path: list[str]) -> Any:
    """Return the type of a setting, or None if it does not exist."""
    kind: Any = ServerSettings
    for name in path:
        structs = (one for one in _parts(kind) if isinstance(one, type) and issubclass(one, msgspec.Struct))
        kind = next(structs, None)
        if kind is None or name not in kind.__struct_fields__:
            return None
        kind = get_type_hints(kind)[name]
    return kind


def _parts(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in {Union, types.UnionType} else (kind,)


def _parsed(variable: str, text: str, kind: Any) -> Any:
    """Return a variable's value: text as it is, everything else as JSON."""
    if any(part is str or get_origin(part) is Literal for part in _parts(kind)):
        return text
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise Invalid(f"environment: {variable} is not a number, true, false or JSON") from error


def _merge(below: dict[str, Any], above: Mapping[str, Any]) -> None:
    for name, value in above.items():
        if isinstance(value, dict) and isinstance(below.get(name), dict):
            _merge(below[name], value)
        else:
            below[name] = value
