"""Well-known formats of secrets: API keys, tokens and private keys.

Every pattern ends as soon as a secret is certain, and none is unbounded, so that a text that is streamed can
be held back by ``LONGEST`` characters and no more.
"""

from typing import Final, NamedTuple


class SecretFormat(NamedTuple):
    """How one kind of secret is written."""

    category: str
    hints: str
    """Words of which a text with such a secret contains one. Finding out that it has none takes a twentieth
    of the time of matching."""
    regex: str
    validator: str = ""
    """The name of a function of ``pattern_matching`` that a match has to pass; empty: none."""

    def as_pattern(self) -> list[str]:
        """The format as ``find_matches`` takes it."""
        return [self.category, self.regex, self.validator, *self.hints.split(" ")]


SECRET_FORMATS: Final = (
    SecretFormat("secret/anthropic", "sk-ant-", r"\bsk-ant-[a-z]{3,8}[0-9]{2}-[A-Za-z0-9_-]{40}", "entropy"),
    SecretFormat("secret/aws", "AKIA ASIA", r"\b(?:AKIA|ASIA)[A-Z2-7]{16}\b", "entropy"),
    SecretFormat("secret/github", "gho_ ghp_ ghs_ ghu_ ghr_", r"\bgh[opsur]_[A-Za-z0-9]{36}\b", "checksum"),
    SecretFormat("secret/github", "github_pat_", r"\bgithub_pat_[A-Za-z0-9]{22}_[A-Za-z0-9]{40}", "entropy"),
    SecretFormat(
        "secret/gitlab",
        "glpat- glptt- gldt- glrt- glcbt- glagent-",
        r"\bgl(?:pat|ptt|dt|rt|cbt|agent)-[A-Za-z0-9_-]{20}",
        "entropy",
    ),
    SecretFormat("secret/google", "AIza", r"\bAIza[A-Za-z0-9_-]{35}\b", "entropy"),
    SecretFormat("secret/google", "GOCSPX-", r"\bGOCSPX-[A-Za-z0-9_-]{28}\b", "entropy"),
    SecretFormat("secret/huggingface", "hf_", r"\bhf_[A-Za-z]{34}\b", "entropy"),
    SecretFormat("secret/jwt", "eyJ", r"\beyJ[A-Za-z0-9_-]{10,120}\.eyJ[A-Za-z0-9_-]{10}", "token_header"),
    SecretFormat("secret/npm", "npm_", r"\bnpm_[A-Za-z0-9]{36}\b", "checksum"),
    SecretFormat(
        "secret/openai",
        "T3BlbkFJ",
        r"\bsk-(?:proj-|svcacct-|admin-)?[A-Za-z0-9_-]{20,80}T3BlbkFJ[A-Za-z0-9_-]{20}",
        "entropy",
    ),
    SecretFormat(
        "secret/private_key", "PRIVATE", r"-----BEGIN (?:[A-Z0-9]{1,12} ){0,2}PRIVATE KEY(?: BLOCK)?-----"
    ),
    SecretFormat("secret/pypi", "pypi-", r"\bpypi-AgEIcHlwaS5vcmc[A-Za-z0-9_-]{50}", "entropy"),
    SecretFormat("secret/sendgrid", "SG.", r"\bSG\.[A-Za-z0-9_-]{22}\.[A-Za-z0-9_-]{43}\b", "entropy"),
    SecretFormat("secret/slack", "xox", r"\bxox[abeprs]-[A-Za-z0-9-]{20}", "entropy"),
    SecretFormat("secret/slipring", "sk-slip-", r"\bsk-slip-[0-9a-f]{16}\.[A-Za-z0-9_-]{43}", "entropy"),
    SecretFormat(
        "secret/stripe", "sk_ rk_ whsec_", r"\b(?:sk|rk|whsec)_(?:live_|test_)?[A-Za-z0-9]{24}", "entropy"
    ),
)
LONGEST: Final = 160
"""No match is longer."""
