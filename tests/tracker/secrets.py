"""Invented secrets of many formats; none was ever valid. They are put together here, so that no scanner takes alarm."""

from __future__ import annotations

import base64
import hashlib
import string


def drawn(seed: str, length: int, alphabet: str = string.ascii_letters + string.digits) -> str:
    """Characters as if drawn at random, the same each time."""
    found = ""
    while len(found) < length:
        digest = hashlib.sha256(f"{seed}{len(found)}".encode()).digest()
        found += "".join(alphabet[byte % len(alphabet)] for byte in digest)
    return found[:length]


_LOWER = string.ascii_lowercase + string.digits
_UPPER = string.ascii_uppercase + string.digits
_HEX = "0123456789abcdef"
_KEY_BLOCK = "-----{} " + "RSA PRIVATE KEY-----"

SECRETS: dict[str, str] = {
    "OpenAI": "sk-proj-" + drawn("openai", 48),
    "Anthropic": "sk-ant-api03-" + drawn("anthropic", 95),
    "OpenRouter": "sk-or-v1-" + drawn("openrouter", 64, _HEX),
    "xAI": "xai-" + drawn("xai", 80),
    "Perplexity": "pplx-" + drawn("pplx", 48),
    "Tavily": "tvly-" + drawn("tvly", 32),
    "Groq": "gsk_" + drawn("groq", 52),
    "Hugging Face": "hf_" + drawn("hf", 34),
    "Replicate": "r8_" + drawn("r8", 37),
    "Stripe": "sk_live_" + drawn("stripe", 24),
    "Stripe, longer": "sk_live_51" + drawn("stripe2", 97),
    "Stripe, restricted": "rk_live_" + drawn("stripe3", 24),
    "SendGrid": "SG." + drawn("sg", 22) + "." + drawn("sg2", 43),
    "DigitalOcean": "dop_v1_" + drawn("do", 64, _HEX),
    "Google OAuth": "ya29.a0" + drawn("ya29", 120),
    "Google": "AIza" + drawn("aiza", 35),
    "Facebook": "EAAC" + drawn("eaac", 120),
    "Grafana service": "glsa_" + drawn("glsa", 32) + "_" + drawn("glsa2", 8, _HEX),
    "Grafana cloud": "glc_" + drawn("glc", 80),
    "Grafana": "eyJrIjoi" + drawn("grafana", 84),
    "Shopify": "shpat_" + drawn("shp", 32, _HEX),
    "Docker": "dckr_pat_" + drawn("dckr", 27),
    "age": "AGE-SECRET-KEY-1" + drawn("age", 58, "QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L"),
    "Twilio": "SK" + drawn("twilio", 32, _HEX),
    "Twilio account": "AC" + drawn("twilio2", 32, _HEX),
    "AWS id": "AKIA" + drawn("akia", 16, _UPPER),
    "AWS": drawn("aws", 37, string.ascii_letters + string.digits + "/+") + "aB3",
    "GitHub": "ghp_" + drawn("ghp", 36),
    "GitHub, fine-grained": "github_pat_" + drawn("ghpat", 22) + "_" + drawn("ghpat2", 59),
    "GitLab": "glpat-" + drawn("glpat", 20),
    "Slack": "xoxb-" + drawn("xoxb", 12, string.digits) + "-" + drawn("xoxb2", 24),
    "npm": "npm_" + drawn("npm", 36),
    "PyPI": "pypi-AgEIcHlwaS5vcmc" + drawn("pypi", 80),
    "Modal": "as-" + drawn("modal", 22),
    "Telegram": drawn("tg", 10, "123456789") + ":" + drawn("tg2", 35),
    "JSON web token": ".".join(["eyJ" + drawn("jwt", 33), "eyJ" + drawn("jwt2", 60), drawn("jwt3", 43)]),
    "private key": "\n".join(
        [_KEY_BLOCK.format("BEGIN"), base64.b64encode(drawn("pem", 90).encode()).decode(), _KEY_BLOCK.format("END")]
    ),
}
"""By their formats alone, wherever they stand."""

NAMED: dict[str, tuple[str, str]] = {
    "Azure": (f"AZURE_KEY={drawn('azure', 32, _HEX)}", drawn("azure", 32, _HEX)),
    "Azure storage": (f"AccountKey={drawn('azure2', 86)}==", drawn("azure2", 86)),
    "a password": ("password: swordfish-and-chips", "swordfish-and-chips"),
    "a header": ("Authorization: Bearer abcdef.123456~x", "abcdef.123456~x"),
    "an address": ("postgresql://me:pa55word@db.example/runs", "pa55word"),
    "AWS, named": (f"aws_secret_access_key = {drawn('aws2', 40, _LOWER)}", drawn("aws2", 40, _LOWER)),
}
"""A text with each, and what of it is secret."""
