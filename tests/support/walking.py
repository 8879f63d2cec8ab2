"""A random walk through the app in one session: after every step the address, the pickers and the page agree.

A link opens what it names. The navigation keeps run, step and preset. One press of Back or Forward, and a reload, show
exactly what was there before, files of one's own included.
"""

import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from app_runs import LINE, PATIENCE, pick_folded, settled
from browser_runs import drop, pairs
from playwright.sync_api import Page

VIEWS = {
    "start": "Start", "yours": "Your data", "mismatch": "Mismatch", "bench": "Correction bench", "gradient": "Gradient",
    "kl": "KL losses", "tokens": "Tokens", "compare": "Compare", "training": "Training", "learn": "Learn",
}  # fmt: skip
RUNS = ("bf16", "stale_4", "alpha", "beta", "sketched")
PRESETS = ("decoupled_token_is", "decoupled_seq_is_rs", "decoupled_geo_rs_token_tis", "trl_opsm")
FILES = ("mine.jsonl", "other.jsonl")
DEFAULTS = {"view": "start", "run": "example", "step": "latest", "preset": "decoupled_token_is"}
# The slider of Start moves by itself.
LOOK = """() => {
  const value = (key) => document.querySelector(`.st-key-${key} input`)?.value.split(" · ").pop() ?? null
  const typed = (slider) => slider.querySelector("input:not([type=range])")?.value
  const text = (css) => document.querySelector(css)?.innerText ?? ""
  return {
    search: location.search, run: value("run"), step: value("step"), preset: value("preset"),
    sliders: [...document.querySelectorAll(".rl-slider:not([data-slider=start_bound])")].map(
      (s) => [s.dataset.slider, typed(s) ?? s.place()]),
    status: [".st-key-open summary p", ".st-key-run_state"].map((css) => text(css).split(" · ")[0].trim()).join(" · "),
    heading: text("[data-testid=stMain] :is(.st-key-heading, h1)"),
    sentence: text(".rl-note"),
  }
}"""


@dataclass(frozen=True)
class Shown:
    """What a person sees of the state of the page."""

    query: tuple[tuple[str, str], ...]
    pickers: tuple[str | None, ...]
    """Run, step and preset; None where the page has no such picker."""
    sliders: str
    heading: str
    sentence: str
    status: str

    @property
    def named(self) -> dict[str, str]:
        """What the address names, with the defaults that it leaves out."""
        return DEFAULTS | dict(self.query)

    @property
    def view(self) -> str:
        return self.named["view"]


def look(page: Page) -> Shown:
    got: dict[str, Any] = page.evaluate(LOOK)
    return Shown(
        query=tuple(sorted(parse_qsl(got["search"].lstrip("?"), keep_blank_values=True))),
        pickers=(got["run"], got["step"], got["preset"]),
        sliders=json.dumps(got["sliders"]),
        heading=got["heading"],
        sentence=got["sentence"],
        status=got["status"],
    )


def steady(page: Page, until: Callable[[Shown], bool], step: str) -> Shown:
    """Wait until the page shows what is expected, and does not change any more."""
    deadline, before = time.monotonic() + PATIENCE / 1000, None
    while time.monotonic() < deadline:
        settled(page)
        now = look(page)
        if now == before and until(now):
            return now
        before = now
        page.wait_for_timeout(100)
    raise AssertionError(f"after {step}: {before}")


def agree(now: Shown, step: str, uploads: dict[str, str]) -> None:
    """Check that each picker shows what the address names, or its default, and that the status names the run.

    The address names a file by a number that only this session knows.
    """
    named = now.named
    named["run"] = uploads.get(named["run"], named["run"])
    for key, shown in zip(("run", "step", "preset"), now.pickers, strict=True):
        if shown is not None:
            assert shown == named[key], (step, key, now)
    if now.pickers[0] not in (None, "example"):
        assert now.pickers[0] in now.status.split(" · "), (step, now)


class Walk:
    """A page, and the entries of its history as they were shown."""

    def __init__(self, page: Page, seed: int, drops: bool = True) -> None:
        self.page, self.chance, self.drops = page, random.Random(seed), drops
        self.entries, self.index = [steady(page, lambda now: now.heading != "", "opening")], 0
        self.uploads: dict[str, str] = {}
        """Number in the address → name of the file."""
        self.listed: set[str] = set()
        """Files in the picker: those that the page has shown since it was loaded."""

    @property
    def now(self) -> Shown:
        return self.entries[self.index]

    def steps(self) -> list[Callable[[], str | None]]:
        """Return the steps that can be taken from here."""
        steps: list[Callable[[], str | None]] = [self.navigate, self.navigate, self.follow, self.reload, self.pick_run]
        steps += [self.back] * 2 * (self.index > 0) + [self.forward] * 2 * (self.index < len(self.entries) - 1)
        steps += [self.pick_preset] * 2 * (self.now.pickers[2] is not None) + [self.move] * 2 * (
            self.now.sliders != "[]"
        )
        steps += [self.drop] * 4 * (self.now.view == "yours" and self.drops)
        steps += [self.pick_step] * (self.now.pickers[1] is not None)
        return steps

    def arrive(self, until: Callable[[Shown], bool], step: str) -> str:
        """Wait for a new entry of the history."""
        now = steady(self.page, until, step)
        agree(now, step, self.uploads)
        self.entries[self.index + 1 :] = [now]
        self.index += 1
        self.list_file()
        return step

    def list_file(self) -> None:
        if self.now.pickers[0] in FILES:
            self.listed.add(self.now.pickers[0])

    def navigate(self) -> str | None:
        """Use the navigation: run, step and preset stay as they are."""
        view = self.chance.choice([view for view in VIEWS if view != self.now.view])
        self.page.get_by_role("link", name=VIEWS[view], exact=True).first.click()
        run, step, _ = self.now.pickers
        heading = self.now.heading

        def until(now: Shown) -> bool:
            return now.view == view and now.heading != heading and (run is None or now.pickers[:2] == (run, step))

        return self.arrive(until, f"navigating to {view}")

    def follow(self) -> str | None:
        """Follow a link of the page: what it names is shown."""
        links = self.page.locator("[data-testid=stMain] .rl-link:visible:not([aria-current])")
        if not links.count():
            return None
        link = links.nth(self.chance.randrange(links.count()))
        target = urlsplit(str(link.get_attribute("href")))
        named = DEFAULTS | dict(parse_qsl(target.query))
        view, heading = named["view"], self.now.heading
        if view == self.now.view:
            return None
        link.click()
        step = f"following a link to {view} {named}"

        def until(now: Shown) -> bool:
            return now.view == view and now.heading != heading and now.named["run"] == named["run"]

        return self.arrive(until, step)

    def choose(self, key: str, label: str, options: list[str], shown: str | None) -> str | None:
        other = [option for option in options if option != shown]
        if not other or not self.page.locator(LINE).is_visible():
            return None
        option = self.chance.choice(other)
        pick_folded(self.page, label, option)

        def until(now: Shown) -> bool:
            return self.uploads.get(now.named[key], now.named[key]) == option

        return self.arrive(until, f"picking {key} {option}")

    def pick_run(self) -> str | None:
        return self.choose("run", "Run", [*RUNS, *sorted(self.listed)], self.now.pickers[0])

    def drop(self) -> str | None:
        """Drop a file into the empty box: the address names a run of its own, and the pickers its name.

        A second file would be a second step of the same run.
        """
        if self.page.locator('[data-testid="stFileChip"]').count():
            return None
        file = self.chance.choice([file for file in FILES if file != self.now.pickers[0]])
        run = self.now.named["run"]
        drop(self.page, file, pairs(16, len(file)))

        def until(now: Shown) -> bool:
            named = now.named["run"]
            if named == run or now.pickers[0] != file:
                return False
            self.uploads[named] = file
            return True

        return self.arrive(until, f"dropping {file}")

    def pick_step(self) -> str | None:
        first = "1" if self.now.pickers[0] in FILES else "0"
        return self.choose("step", "Step", ["latest", first], self.now.pickers[1])

    def pick_preset(self) -> str | None:
        label = "Preset of A" if self.now.view == "compare" else "Preset"
        return self.choose("preset", label, list(PRESETS), self.now.pickers[2])

    def move(self) -> str | None:
        """Move a slider by a key: the address has the new bound."""
        before, slider = self.now, self.page.locator(".rl-slider").first
        place = slider.evaluate("s => s.place()")
        slider.locator("input[type=range]").press(self.chance.choice(("Home", "End", "PageUp", "PageDown")))
        if slider.evaluate("s => s.place()") == place:
            return None
        return self.arrive(lambda now: now.sliders != before.sliders and now.query != before.query, "moving a slider")

    def back(self) -> str:
        self.page.go_back()
        self.index -= 1
        return self.again("Back")

    def forward(self) -> str:
        self.page.go_forward()
        self.index += 1
        return self.again("Forward")

    def reload(self) -> str:
        self.page.reload()
        self.listed.clear()
        return self.again("a reload")

    def again(self, step: str) -> str:
        """Wait for what this entry of the history has shown."""
        steady(self.page, lambda now: now == self.now, f"{step} to {self.now}")
        self.list_file()
        return step

    def go_on(self, count: int) -> None:
        """Take so many steps, and print each."""
        while count:
            if step := self.chance.choice(self.steps())():
                count -= 1
                print(step, flush=True)
