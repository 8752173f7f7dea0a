"""Strings that try to become markup, attributes, scripts, requests, templates or terminal codes."""

from __future__ import annotations

import random

CORES = (
    "<script>window.hacked=1</script>",
    "<img src=x onerror=window.hacked=1>",
    "<svg onload=window.hacked=1>",
    '"><script>window.hacked=1</script>',
    "'><img src=x onerror=window.hacked=1>",
    "</textarea><script>hacked=1</script>",
    "</title><script>hacked=1</script>",
    "--><script>hacked=1</script>",
    "]]><script>hacked=1</script>",
    '<div hx-get="/hacked" hx-trigger="load">',
    '" hx-get="/hacked" hx-trigger="load" x="',
    "' hx-post='/hacked' hx-trigger='load' x='",
    '<form action="/hacked"><button autofocus>',
    "javascript:window.hacked=1",
    "data:text/html,<script>hacked=1</script>",
    '<iframe src="javascript:hacked=1">',
    '<a href="javascript:hacked=1">x</a>',
    '<meta http-equiv="refresh" content="0;url=/hacked">',
    '<base href="//evil.test/">',
    "<link rel=stylesheet href=/hacked>",
    "<style>*{background:url(/hacked)}</style>",
    '" style="background:url(/hacked)',
    '" onmouseover="hacked=1',
    "{{ 7*7 }}",
    "{% import os %}",
    "${7*7}",
    "{{ ''.__class__ }}",
    "<%= 7*7 %>",
    "\x1b[2J\x1b[H",
    "\x00\x01\x02",
    "\u202egnp.exe",
    "\u2028hacked=1\u2029",
    "&lt;script&gt;",
    "&#60;script&#62;",
    "%3Cscript%3E",
    "\\u003cscript\\u003e",
    "<ScRiPt>hacked=1</sCrIpT>",
    "<scr\x00ipt>hacked=1</script>",
    "<<script>hacked=1//<</script>",
    "<svg><script>hacked=1</script></svg>",
    '<math><mi//xlink:href="data:x,<script>hacked=1</script>">',
    "\r\nSet-Cookie: hacked=1\r\n\r\n",
    "../../../etc/passwd",
    "//evil.test/",
    "\\\\evil.test\\x",
    "?cursor=a:&x=<b>",
    "#<b>",
    "a" * 300 + "<b>",
    'nonce="x" hx-nonce="x"',
)

AROUND = ("", " ", "'", '"', ">", "<", "=", "/", "&", "`", "\t", "é", "日本", "\U0001f600", "x")


def make_hostile(count: int, seed: int = 21) -> list[str]:
    """The cores, and combinations of them, always the same."""
    draw = random.Random(seed)
    found = list(CORES)
    while len(found) < count:
        parts = [draw.choice(AROUND), draw.choice(CORES), draw.choice(AROUND)]
        if draw.random() < 0.3:
            parts.append(draw.choice(CORES))
        found.append("".join(parts))
    return found[:count]
