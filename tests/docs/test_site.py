"""The documentation's site: it builds without a warning, links lead somewhere, examples run, pictures are true."""

import os
import re
import runpy
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
import yaml  # type: ignore[import-untyped]  # it ships no types

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "docs/examples").rglob("*.py"))
REFERENCE = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs/reference").glob("*.md"))
NAMES = re.findall(r"^::: (\S+)$", REFERENCE, re.MULTILINE)
# A function that has the name of its module stands on its page by itself.
MODULES = [name for name in NAMES if "." not in name or name.split(".")[-1] != name.split(".")[-2]]
PATIENCE_S = 300


# ------------------------------------------------------------------------------------------------ examples


@pytest.mark.matrix
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_as_it_stands(example: Path, tmp_path: Path) -> None:
    ran = subprocess.run(
        # One exception: advanced-alchemy, which Litestar looks for, uses a decorator that SQLAlchemy has retired.
        [sys.executable, "-W", "error", "-W", "ignore:The declarative_mixin decorator", example],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
        env={name: value for name, value in os.environ.items() if not name.startswith("TENURE_")},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert "Exception ignored" not in ran.stderr
    assert "was never retrieved" not in ran.stderr


def test_every_example_is_on_a_page() -> None:
    pages = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs").rglob("*.md"))
    shown = set(re.findall(r'--8<-- "(\S+)"', pages))
    here = ROOT / "docs/examples"
    assert shown == {path.relative_to(here).as_posix() for path in here.rglob("*.*") if path.suffix in (".py", ".yaml")}


def test_the_tutorial_has_eight_steps() -> None:
    assert [path.name[0] for path in EXAMPLES if path.parent.name == "tutorial"] == [*"12345678"]


def test_the_deployment_leaves_time_to_drain() -> None:
    deployment = yaml.safe_load((ROOT / "docs/examples/how_to/deployment.yaml").read_text(encoding="utf-8"))
    pod = deployment["spec"]["template"]["spec"]
    [container] = pod["containers"]
    variables = {one["name"]: one.get("value") for one in container["env"]}
    assert pod["terminationGracePeriodSeconds"] > int(variables["TENURE_DRAIN"].removesuffix("s"))
    assert "cpu" not in container["resources"]["limits"]


# ------------------------------------------------------------------------------------------------ pictures


def test_the_pictures_are_those_of_the_machines() -> None:
    """Changed a machine? `python docs/_site/diagrams.py` draws it anew; look at it."""
    drawn: dict[str, Any] = runpy.run_path(str(ROOT / "docs/_site/diagrams.py"))
    for name, machine in drawn["machines"]().items():
        assert (ROOT / f"docs/theory/{name}.svg").read_text(encoding="utf-8") == drawn["draw"](machine)


def test_a_picture_of_another_machine_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from tenure import _lease_machine as lease

    kept = dict(lease.TRANSITIONS)
    monkeypatch.setattr(
        lease, "TRANSITIONS", {**kept, (lease.LeaseState.HELD, lease.LeaseEvent.UNKNOWN): lease.LeaseState.LOST}
    )
    with pytest.raises(AssertionError):
        test_the_pictures_are_those_of_the_machines()


# ---------------------------------------------------------------------------------------------- reference


def test_every_public_module_is_in_the_reference() -> None:
    source = ROOT / "packages/core/src/tenure"
    private = {"tenure.cli"}  # a command: its help is its reference
    public = {
        ".".join(["tenure", *path.relative_to(source).with_suffix("").parts]).removesuffix(".__init__")
        for path in [
            *source.glob("*.py"),
            *source.glob("ext/*.py"),
            *source.glob("*/__init__.py"),
            *source.glob("ext/*/__init__.py"),
        ]
        if not any(
            part.startswith("_") and part != "__init__" for part in path.relative_to(source).with_suffix("").parts
        )
    }
    told = {name for name in MODULES if name.startswith("tenure.")}
    assert public - private - {"tenure", "tenure.ext", "tenure.testing"} <= told | {"tenure.testing"}
    assert len(MODULES) == len(set(MODULES))
    assert {"tenure_postgres", "tenure_valkey", "tenure_sqlite"} <= set(MODULES)


# --------------------------------------------------------------------------------------------------- site


class Page(HTMLParser):
    """The anchors of a page, where its links lead, and what it loads."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.anchors |= {value for name, value in found.items() if name in ("id", "name") and value}
        if tag == "a" and found.get("href"):
            self.links.append(found["href"] or "")
        for name in ("src", "href"):
            if tag in ("script", "img", "link", "iframe") and found.get(name) and found.get("rel") != "canonical":
                self.loads.append(found[name] or "")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    program = Path(sys.executable).parent / "mkdocs"
    if not program.exists():
        if os.environ.get("CI", "").lower() not in ("", "0", "false"):
            pytest.fail(
                "Needed where CI is set: the group docs is not installed (uv sync --group docs).", pytrace=False
            )
        pytest.skip("the group docs is not installed: uv sync --all-packages --group docs")
    ran = subprocess.run(
        [program, "build", "--strict", "--quiet", "--site-dir", folder],
        cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return folder


@pytest.mark.matrix
def test_every_link_of_the_site_leads_to_a_page_and_a_place_on_it(site: Path) -> None:
    pages = {path.resolve(): Page(path) for path in site.rglob("*.html")}
    assert len(pages) > 30
    dead = []
    for path, page in pages.items():
        if path.name == "404.html":
            continue
        for link in page.links:
            target, _, anchor = unquote(link).partition("#")
            if "://" in target or target.startswith(("mailto:", "javascript:")):
                continue
            leads = (path.parent / target).resolve() if target else path
            leads = leads / "index.html" if leads.is_dir() else leads
            if not leads.exists() or (anchor and leads in pages and anchor not in pages[leads].anchors):
                dead.append(f"{path.relative_to(site)}: {link}")
    assert not dead


@pytest.mark.matrix
def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    for path in site.rglob("*.html"):
        assert not [load for load in Page(path).loads if "://" in load or load.startswith("//")], path


@pytest.mark.matrix
@pytest.mark.filterwarnings("ignore:The declarative_mixin decorator")
def test_the_reference_has_every_public_name(site: Path) -> None:
    import importlib

    text = {path.parent.name: Page(path).anchors for path in (site / "reference").rglob("index.html")}
    anchors = set().union(*text.values())
    missing = []
    for name in MODULES:
        module = importlib.import_module(name)
        for one in module.__all__:
            here = {f"{name}.{one}", f"{name}.{one}.{one}"}
            if not here & anchors and not isinstance(getattr(module, one), str):
                missing.append(f"{name}.{one}")
    assert not missing
