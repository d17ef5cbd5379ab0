"""Terms on pages mean what the glossary says."""

from daemon.doors.web.terms import TERMS
from tests.support.daemons.doors import door, story
from tests.support.paths import ROOT
from tests.support.servers.browsers import browser, parsed, seen

GLOSSARY = (ROOT / "docs" / "understand" / "glossary.md").read_text("utf-8")


def test_each_meaning_is_a_line_of_the_glossary():
    lines = {
        tuple(cell.strip() for cell in line.strip("|").split("|"))
        for line in GLOSSARY.splitlines() if line.startswith("| ")
    }  # fmt: skip
    wrong = {
        term: meaning for term, meaning in TERMS.items()
        if not any(meaning == said and term in (name, *name.split(", ")) for name, said in lines)
    }  # fmt: skip
    assert wrong == {}


@story
async def test_a_page_explains_its_numbers_on_hover_and_at_its_end(folder):
    async with door(folder, speed=1.0) as client, browser(client) as visitor:
        tags, text = parsed(await seen(visitor, "/ui/"))
        titles = {has["title"] for _, has in tags if "title" in has}
        for term in ("quota", "lent GPUs", "idle GPUs", "pending jobs"):
            assert TERMS[term] in titles
            assert TERMS[term] in text.split("What the terms on this page mean")[1]
        _, text = parsed(await seen(visitor, "/ui/none", 404))
        assert "What the terms" not in text
