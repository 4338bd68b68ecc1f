"""Writes docs/reference from the code: `python docs/generate.py`. A test checks that it was run."""

from __future__ import annotations

import ast
import inspect
import tempfile
from collections.abc import Iterator, Mapping
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
from typer.main import get_command

from fclub.cli.main import COMMANDS, _module
from fclub.environments.registry import ENVIRONMENTS
from fclub.errors import FclubError
from fclub.parameters import Row, rows_of
from fclub.policies.registry import POLICIES
from fclub.service.http import api, global_api
from fclub.service.http.gate import FAILED, status_for
from fclub.service.http.keys import needed
from fclub.service.serve import global_app, local_app
from fclub.service.settings import GlobalSettings, LocalSettings, Model, Nats

ROOT = Path(__file__).parent.parent
REFERENCE = ROOT / "docs" / "reference"

OTHER_ROUTES = {
    "/": "The dashboard; holds no data.",
    "/static/{name}": "Files of the dashboard.",
    "/v1/live": "Server-sent events: `history`, then `now` once a second.",
    "/v1/visitors": "Simulated visitors tell what several policies earned on the same visits.",
    "/metrics": "Numbers for Prometheus.",
    "/openapi.json": "This description, for machines.",
    "/healthz": "Is all well? `degraded` names the reason.",
    "/readyz": "Can it serve?",
}


def table(head: list[str], lines: list[list[str]]) -> str:
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)


def command_of(name: str) -> Any:
    return get_command(import_module(f"fclub.cli.{_module(name)}").app)


def cli() -> str:
    parts = ["# Command line", "`fclub --help` and `fclub COMMAND --help` say the same.", ""]
    for name in COMMANDS:
        command = command_of(name)
        parts += _command(f"## fclub {name}", command)
        for part, inside in getattr(command, "commands", {}).items():
            parts += _command(f"### fclub {name} {part}", inside)
    return "\n".join(parts)


def _command(title: str, command: Any) -> list[str]:
    lines = [_parameter(p) for p in command.params if p.name != "help"]
    parts = [title, (command.help or "").strip(), ""]
    parts += [table(["argument or option", "meaning", "default"], lines), ""] if lines else []
    return parts + ([f"{command.epilog.strip()}", ""] if command.epilog else [])


def _parameter(parameter: Any) -> list[str]:
    if parameter.param_type_name == "argument":
        names = str(parameter.name).upper()
    else:
        names = ", ".join([*parameter.opts, *parameter.secondary_opts])
    default = parameter.default
    shown = "" if callable(default) or default in (None, False, (), []) else f"`{default}`"
    return [f"`{names}`", getattr(parameter, "help", None) or "", shown]


CONFIGURATION = """\
# Configuration

A server reads a TOML file (`--config`), then environment variables (`FCLUB_HTTP__PORT=8200`), then
options (`--set http.port=8200`); later ones win. Everything is checked at start: an error names the
key, and unknown keys are refused. Every command reads two further variables, which are no settings of a
server: `FCLUB_CACHE_DIR`, the folder of compiled kernels and fetched data, and `FCLUB_DATA_DIR`, a
folder in which it looks for data sets.
"""


def configuration() -> str:
    """Keys, types and defaults from the classes, meanings from the strings after their fields."""
    rows = {kind: dict(_keys(kind, "")) for kind in (LocalSettings, GlobalSettings)}
    shared = rows[LocalSettings].keys() & rows[GlobalSettings].keys()
    parts = [CONFIGURATION]
    for title, kind, wanted in (
        ("Both servers", LocalSettings, shared),
        ("Local server only", LocalSettings, rows[LocalSettings].keys() - shared),
        ("Global server only", GlobalSettings, rows[GlobalSettings].keys() - shared),
    ):
        lines = [row for key, row in rows[kind].items() if key in wanted]
        parts += [f"## {title}\n", table(["key", "type", "default", "meaning"], lines), ""]
    return "\n".join(parts)


def _keys(kind: Any, prefix: str) -> Iterator[tuple[str, list[str]]]:
    meanings = _meanings(kind)
    info: Any = msgspec.inspect.type_info(kind)
    for field in info.fields:
        key = f"{prefix}{field.name}"
        if isinstance(field.type, msgspec.inspect.StructType):
            yield from _keys(field.type.cls, f"{key}.")
            continue
        default = "required" if field.required else f"`{_default(field)!r}`"
        yield key, [f"`{key}`", _type(field.type), default, meanings[field.name]]


def _meanings(kind: Any) -> dict[str, str]:
    """The string after each field, of the class and of those that it extends."""
    found: dict[str, str] = {}
    for base in kind.__mro__:
        if base.__module__ == kind.__module__:
            (body,) = ast.parse(inspect.getsource(base)).body
            assert isinstance(body, ast.ClassDef)
            for field, text in pairwise(body.body):
                if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
                    said = str(ast.literal_eval(text.value))
                    found[ast.unparse(field.target)] = " ".join(said.split())
    return found


def _default(field: Any) -> Any:
    return field.default if field.default is not msgspec.NODEFAULT else field.default_factory()


def _type(kind: Any) -> str:
    if isinstance(kind, msgspec.inspect.Metadata):
        return _type(kind.type)
    if isinstance(kind, msgspec.inspect.UnionType):
        return " or ".join(_type(part) for part in kind.types)
    if isinstance(kind, msgspec.inspect.ListType):
        return f"list of {_type(kind.item_type)}"
    if isinstance(kind, msgspec.inspect.LiteralType):
        return " or ".join(f"`{value}`" for value in kind.values)
    name = type(kind).__name__.removesuffix("Type").lower()
    limits = [
        f"{word} {getattr(kind, key)}" for key, word in _LIMITS if getattr(kind, key, None) is not None
    ]
    return {"str": "text", "int": "integer", "dict": "table"}.get(name, name) + (
        f", {', '.join(limits)}" if limits else ""
    )


_LIMITS = (("ge", "≥"), ("gt", ">"), ("le", "≤"), ("pattern", "matching"))


_KINDS = {
    "gauge": "gauge",
    "_counter": "counter",
    "CounterMetricFamily": "counter",
    "count": "counter",
    "count_by": "counter",
    "HistogramMetricFamily": "histogram",
}
"""What makes a metric, and of which kind."""


def metrics() -> str:
    """Names and texts from the calls that register them."""
    found: dict[str, tuple[str, str]] = {}
    for file in sorted((ROOT / "src" / "fclub" / "service").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and (name := _metric(node)):
                kind = _KINDS[_called(node)]
                found[name] = (kind, str(ast.literal_eval(node.args[1])))
    lines = [[f"`{name}`", kind, text] for name, (kind, text) in sorted(found.items())]
    head = (
        "# Metrics\n\nWhat `/metrics` shows, for Prometheus. Times are in seconds, sizes in bytes.\n\n"
    )
    return head + table(["name", "kind", "meaning"], lines) + "\n"


def _called(node: ast.Call) -> str:
    return getattr(node.func, "attr", getattr(node.func, "id", ""))


def _metric(node: ast.Call) -> str | None:
    first = node.args[0] if len(node.args) > 1 else None
    if isinstance(first, ast.Constant) and str(first.value).startswith("fclub_"):
        return str(first.value) if isinstance(node.args[1], ast.Constant) else None
    return None


def http() -> str:
    described = api.openapi(dim=2), global_api.openapi()
    parts = [
        "# HTTP\n",
        "A route with a scope needs `Authorization: Bearer TOKEN`, the token of a key with that scope",
        "([keys](../howto/security.md)). What is refused is",
        "answered with the body `Refused` and a status; [errors](errors.md) has what each stands for.",
        "Requests about users may carry the header `X-Fclub-User`, for",
        "[a proxy in front of several servers](../howto/several-servers.md).",
        "",
    ]
    model = Model(dim=2)
    with tempfile.TemporaryDirectory() as folder:
        local = LocalSettings(model=model, store=f"{folder}/local.db")
        hub = GlobalSettings(
            model=model,
            store=f"{folder}/global.db",
            servers=["s0"],
            signers={"s0": [64 * "0"]},
            nats=Nats(url="nats://127.0.0.1:1"),
        )
        for title, (app, runner), known, refusals in (
            ("Local server", local_app(local), described[0]["paths"], api.REFUSALS),
            ("Global server", global_app(hub), described[1]["paths"], global_api.REFUSALS),
        ):
            lines = []
            routes: list[Any] = app.routes
            for route in routes:
                path = route.path.replace(":path", "")
                method = next(m for m in ("POST", "PUT", "DELETE", "GET") if m in route.methods)
                text = OTHER_ROUTES.get(path) or known[path][method.lower()]["summary"]
                lines.append([method, f"`{path}`", needed(method, path) or "", text])
            parts += [f"## {title}\n", table(["", "route", "scope", "what it does"], lines), ""]
            refused = [
                [method.upper(), ", ".join(map(str, codes))] for method, codes in refusals.items()
            ]
            parts += [table(["", "refusals that `/openapi.json` lists"], refused), ""]
            runner.node.store.close()
    parts += ["## Bodies", ""]
    bodies = described[0]["components"]["schemas"] | described[1]["components"]["schemas"]
    for name, schema in sorted(bodies.items()):
        fields = [[f"`{key}`", _schema(value)] for key, value in schema.get("properties", {}).items()]
        parts += [
            f"### {name}",
            schema.get("description", ""),
            "",
            table(["field", "type"], fields),
            "",
        ]
    return "\n".join(parts)


def _schema(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "anyOf" in schema:
        return " or ".join(_schema(part) for part in schema["anyOf"])
    kind = str(schema.get("type", "any"))
    return f"list of {_schema(schema['items'])}" if isinstance(schema.get("items"), dict) else kind


def errors() -> str:
    """The tree of exceptions as it is defined."""
    parts = [
        "# Errors",
        "What fclub raises on purpose is in `fclub.errors`; catch `FclubError` for all of it.",
        "The command line prints it as one line and exits with 2 for an `InvalidInput`, else with 1.",
        "",
        "A server answers a request that ends in an error with the status beside it, and with",
        f"{FAILED} if there is none.",
        "",
        "```",
        FclubError.__name__,
        *_branches(FclubError, ""),
        "```",
        "",
    ]
    lines = [
        [f"`{kind.__name__}`", _bases(kind), str(status_for(kind) or ""), _said(kind)]
        for kind in _descendants(FclubError)
    ]
    return "\n".join([*parts, table(["error", "is a", "status", "meaning"], lines)])


def _branches(kind: type[FclubError], indent: str) -> list[str]:
    lines, kinds = [], _children(kind)
    for child in kinds:
        last = child is kinds[-1]
        lines.append(f"{indent}{'└── ' if last else '├── '}{child.__name__}")
        lines += _branches(child, indent + ("    " if last else "│   "))
    return lines


def _children(kind: type[FclubError]) -> list[type[FclubError]]:
    return [child for child in kind.__subclasses__() if child.__module__ == FclubError.__module__]


def _descendants(kind: type[FclubError]) -> list[type[FclubError]]:
    return [kind, *(found for child in _children(kind) for found in _descendants(child))]


def _bases(kind: type) -> str:
    return ", ".join(f"`{base.__name__}`" for base in kind.__bases__)


def _said(kind: type) -> str:
    return " ".join((kind.__doc__ or "").split())


POLICIES_HEAD = """\
# Policies

Every policy is a class of `fclub` with these parameters, all of them given by name.
`fclub.make_policy(NAME, ...)` makes it by the name of its heading, as
`fclub run --policy NAME --set NAME.PARAMETER=VALUE` does. `fclub policies NAME` prints the same table.
"""

ENVIRONMENTS_HEAD = """\
# Environments

Where visits and rewards come from: `fclub.make_environment(NAME, ...)`, or
`fclub run --env NAME --set env.PARAMETER=VALUE`.
"""


def policies() -> str:
    parts = [POLICIES_HEAD]
    for name, policy in POLICIES.items():
        switches = ", ".join(f"{key} {value}" for key, value in policy.switches.items())
        parts += [f"## {name}\n", f"`fclub.{policy.__name__}`: {_opening(policy)}", ""]
        parts += [f"Switches: {switches}.", ""] if switches else []
        parts += [_declared(policy.parameters), ""]
    return "\n".join(parts)


def environments() -> str:
    parts = [ENVIRONMENTS_HEAD]
    for name, environment in ENVIRONMENTS.items():
        parts += [f"## {name}\n", _opening(environment), "", _declared(rows_of(environment)), ""]
    return "\n".join(parts)


def _opening(kind: type) -> str:
    """The first paragraph of a docstring."""
    return " ".join(inspect.cleandoc(kind.__doc__ or "").partition("\n\n")[0].split())


def _declared(rows: Mapping[str, Row]) -> str:
    head = ["parameter", "default", "values", "unit", "meaning"]
    return table(
        head, [[f"`{r.name}`", f"`{r.default}`", r.allowed, r.unit, r.meaning] for r in rows.values()]
    )


PAGES = {
    "cli.md": cli,
    "policies.md": policies,
    "environments.md": environments,
    "configuration.md": configuration,
    "metrics.md": metrics,
    "http.md": http,
    "errors.md": errors,
}


def main() -> None:
    for name, make in PAGES.items():
        (REFERENCE / name).write_text(make().rstrip() + "\n")


if __name__ == "__main__":
    main()
