"""The JavaScript modules and stylesheets that draw turns and stages: the live page loads them, and reports of
``slipring bench`` contain them."""

from pathlib import Path

DRAWINGS = Path(__file__).with_name("drawings")
