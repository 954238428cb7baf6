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
    "Gemini, newer": "AQ." + drawn("aq", 50),
    "Bedrock": "ABSK" + drawn("absk", 128),
    "Bedrock, short-lived": "bedrock-api-key-" + drawn("bedrock", 132),
    "Together": "tgp_v1_" + drawn("together", 43),
    "Fireworks": "fw_" + drawn("fw", 24),
    "Weights & Biases": "wandb_v1_" + drawn("wandb", 77),
    "Voyage": "pa-" + drawn("voyage", 43),
    "Jina": "jina_" + drawn("jina", 60),
    "Firecrawl": "fc-" + drawn("fc", 32, _HEX),
    "ElevenLabs": "sk_" + drawn("eleven", 48, _HEX),
    "Baidu": "bce-v3/ALTAK-" + drawn("baidu", 21) + "/" + drawn("baidu2", 40, _HEX),
    "RunPod": "rpa_" + drawn("rpa", 42, _UPPER),
    "Anyscale": "esecret_" + drawn("esecret", 50),
    "Friendli": "flp_" + drawn("flp", 46),
    "Predibase": "pb_" + drawn("pb", 24),
    "Upstage": "up_" + drawn("upstage", 29),
    "psk": "psk-" + drawn("psk", 40),
    "glhf": "glhf_" + drawn("glhf", 32, _HEX),
    "Chutes": ".".join(["cpk_" + drawn("cpk", 32, _HEX), drawn("cpk2", 32, _HEX), drawn("cpk3", 32)]),
    "Pinecone": "pcsk_" + drawn("pcsk", 5) + "_" + drawn("pcsk2", 63),
    "Supabase": "sb_secret_" + drawn("sb", 31),
    "Vercel": "vck_" + drawn("vck", 60),
    "secret_": "secret_" + drawn("secret", 43),
    "key_": "key_" + drawn("key", 32),
    "Brave": "BSA" + drawn("brave", 28),
    "E2B": "e2b_" + drawn("e2b", 40, _HEX),
    "Daytona": "dtn_" + drawn("dtn", 64, _HEX),
    "Zhipu": drawn("zhipu", 32, _HEX) + "." + drawn("zhipu2", 16),
    "Baseten": drawn("baseten", 8) + "." + drawn("baseten2", 32),
    "Ollama": drawn("ollama", 32, _HEX) + "." + drawn("ollama2", 24, string.ascii_letters + string.digits + "_-"),
    "Lambda": "secret_my-key_" + drawn("lambda", 32, _HEX) + "." + drawn("lambda2", 32),
    "Lambda, unnamed": "secret_" + drawn("lambda", 32, _HEX) + "." + drawn("lambda2", 32),
    "Airtable": "pat" + drawn("airtable", 14) + "." + drawn("airtable2", 64, _HEX),
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
    "Gemini's own way": (f"GET /v1/models?key={drawn('query', 39)}", drawn("query", 39)),
    "an option": ("tool --api-key open-sesame-17 --verbose", "open-sesame-17"),
    "Azure's header": (f"Ocp-Apim-Subscription-Key: {drawn('apim', 32, _HEX)}", drawn("apim", 32, _HEX)),
    "a session": (f"Cookie: session={drawn('session', 32)}", drawn("session", 32)),
    "a signature": (f"?sv=2024&sig={drawn('sig', 40)}%3D", drawn("sig", 40)),
    "auth": (f"auth={drawn('auth', 24)}", drawn("auth", 24)),
    "a sentence": ("the password is sword-fish7", "sword-fish7"),
    "a scheme": (f"Authorization: Api-Key {drawn('scheme', 24)}", drawn("scheme", 24)),
    "a scheme alone": (f"curl -H 'Api-Key {drawn('scheme', 24)}'", drawn("scheme", 24)),
    "a variable": (f"os.environ['MY_TOKEN']='{drawn('env', 12)}'", drawn("env", 12)),
    "a variable in JSON": (rf"os.environ[\"MY_API_KEY\"] = \"{drawn('env', 12)}\"", drawn("env", 12)),
    "a variable by default": (f'os.environ.setdefault("MY_PASSWORD", "{drawn("env", 12)}")', drawn("env", 12)),
    "AWS, named": (f"aws_secret_access_key = {drawn('aws2', 40, _LOWER)}", drawn("aws2", 40, _LOWER)),
}
"""A text with each, and what of it is secret."""
