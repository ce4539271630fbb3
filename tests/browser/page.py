"""A page in the browser: what a user does with it, and what the user sees."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

from PIL import Image


class Page:
    """One of the written pages, once opened."""

    def __init__(self, driver: Any, written: dict[str, Path]) -> None:
        self.driver = driver
        self.written = written

    def open(self, name: str, *, width: int = 1280, height: int = 900, dark: bool = False) -> Page:
        """Open a page from its file, at a size and in a colour scheme."""
        self.cdp(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.cdp("Emulation.setEmulatedMedia", media="", features=[scheme])
        self.driver.get_log("browser")  # what an earlier page said is not this one's
        self.driver.get(self.written[name].as_uri())
        return self

    def cdp(self, command: str, **arguments: Any) -> Any:
        """A command of the browser's own protocol."""
        return self.driver.execute_cdp_cmd(command, arguments)

    def js(self, code: str, *arguments: Any) -> Any:
        """The value of an expression in the page; ``arguments[0]`` … are the arguments."""
        return self.driver.execute_script(f"return ({code})", *arguments)

    def one(self, selector: str) -> Any:
        """The first element that a CSS selector finds."""
        return self.driver.find_element("css selector", selector)

    def all(self, selector: str) -> list[Any]:
        """Every element that a CSS selector finds."""
        return list(self.driver.find_elements("css selector", selector))

    def texts(self, selector: str) -> list[str]:
        """The text of each, also of what is scrolled away."""
        return list(
            self.js(
                "[...document.querySelectorAll(arguments[0])].map(e => e.textContent)", selector
            )
        )

    def console(self) -> list[str]:
        """What the page has logged since it was opened."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    @property
    def shown(self) -> tuple[int, int]:
        """First and last step that the charts show."""
        data = self.js("({...document.querySelector('.charts').dataset})")
        return int(data["from"]), int(data["to"])

    def click(self, selector: str, place: int = 0) -> None:
        """Click on one of the elements that a CSS selector finds, with the mouse."""
        element = self.all(selector)[place]
        self.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
        element.click()

    def box(self, selector: str) -> dict[str, float]:
        """Where an element is in the window, once it is scrolled to the middle of it."""
        self.driver.execute_script(
            "document.querySelector(arguments[0]).scrollIntoView({block: 'center'})", selector
        )
        where = "document.querySelector(arguments[0]).getBoundingClientRect().toJSON()"
        return dict(self.js(where, selector))

    def mouse(self, kind: str, box: dict[str, float], share: float, held: bool = False) -> None:
        """One event of the mouse, at a share of a box's width and half its height."""
        self.cdp(
            "Input.dispatchMouseEvent",
            type=kind,
            x=box["x"] + share * box["width"],
            y=box["y"] + box["height"] / 2,
            button="left" if held or kind != "mouseMoved" else "none",
            buttons=int(held),
            clickCount=1,
        )

    def hover(self, selector: str, share: float) -> None:
        """Rest the mouse on an element, at a share of its width."""
        self.mouse("mouseMoved", self.box(selector), share)

    def drag(self, selector: str, begin: float, end: float) -> None:
        """Drag with the mouse over an element, between two shares of its width."""
        box = self.box(selector)
        self.mouse("mouseMoved", box, begin)
        self.mouse("mousePressed", box, begin, held=True)
        self.mouse("mouseMoved", box, (begin + end) / 2, held=True)
        self.mouse("mouseMoved", box, end, held=True)
        self.mouse("mouseReleased", box, end)

    def press(self, key: str, code: int) -> None:
        """Press and let go a key of the keyboard."""
        for kind in ("keyDown", "keyUp"):
            self.cdp(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code
            )

    def screenshot(self) -> Image.Image:
        """What the window shows, as a picture."""
        from selenium.common.exceptions import TimeoutException

        try:
            shot = self.cdp("Page.captureScreenshot")
        except TimeoutException:  # a busy machine had not put the page in its place yet
            shot = self.cdp("Page.captureScreenshot")
        return Image.open(io.BytesIO(base64.b64decode(shot["data"]))).convert("RGB")
