"""Texts that tokenizers are compared over: everything that cuts have been known to differ on."""

import random
from pathlib import Path

PYTHON = '''\
@dataclass(frozen=True)
class Point[T]:
    """A point."""

    x: float = 1_000.5e-10
    y: complex = 0x_FF + 0b1010j

    def __matmul__(self, other: "Point[T]", /, *args: int, **kwargs) -> str | None:
        if (n := len(args)) >= 2 and not self.x != other.y:
            return f"{self.x!r:>{n}} {{}} \\n\\t\\u00e9" % ()
        return None  # isn't it? we'll see


\tlambda: (yield)  \n\n\n    \n'''
C = """\
#include <stdio.h>
#define MAX(a, b) ((a) > (b) ? (a) : (b))
/* It's a comment */ static const uint8_t *p = &buf[0]; // don't
int main(int argc, char **argv) {
\tfor (size_t i = 0; i < 1024u; ++i) { p->x += a[i] << 3 | ~0xdeadBEEF; }
\treturn printf("%5.2f\\r\\n", 3.14159f), 0;
}
"""
RUST = """\
impl<'a, T: 'static + ?Sized> Iterator for Foo<'a, T> where T: Send {
    type Item = &'a [u8; 32];
    fn next(&mut self) -> Option<Self::Item> { self.0.as_ref()?.iter().map(|x| x..=9).next() }
}
#[derive(Debug)] macro_rules! m { ($($x:expr),* $(,)?) => {{ vec![$($x),*] }}; }
let s = r#"raw "string""#; let c = 'd'; let l = 'll: loop { break 'll };
"""
JAVASCRIPT = """\
export const f = async ({a, ...b}) => `${a ?? b?.['c']} \\${}`; // TODO
if (x === null || y !== undefined && !(z instanceof Map)) { x ||= /[^\\s\\p{L}]+(?=\\d{2,})/giu }
"""
OTHERS = """\
SELECT t."id", COUNT(*) AS n FROM `t` WHERE name LIKE '%it''s%' GROUP BY 1 HAVING n >= 10; -- done
<!DOCTYPE html><p class="a-b" data-x='1'>&nbsp;&#8217;<br/></p><!-- no --><![CDATA[ x ]]>
{"a": [1, -2.5e+10, null, true], "b\\u00e9": {"c": "\\"\\\\"}}
for f in $(ls *.txt | grep -v '^#'); do echo "${f%.*}" >> /dev/null 2>&1 && exit $?; done
key: &anchor !!str |\n  block\n  text\n---\n- *anchor
\\begin{align*} \\sum_{i=1}^{n} x_i^2 &= \\frac{1}{2} \\\\ \\end{align*}
| a | b |\n|:--|--:|\n| **bold** | `code` |\n\n1. one\n2. two\n\n> quote\n\n```sh\n$ ls -la\n```
main :: IO () -- Haskell\nmain = mapM_ (putStrLn . show) $ filter ((== 0) . (`mod` 2)) [1..10]
"""
CONTRACTIONS = """\
it's It'S IT'S they're They'RE we've WE'VE i'm I'M you'll YOU'LL You'Ll he'd HE'D don't DON'T 's 'S 't 're 'Ll
'tis 'twas rock'n'roll O'Reilly l'été d'accord it’s don’t it'sn't x'lly 'sS 'ſ 'ſx Kelvin'K ''s '''d 's's'll
"""
SCRIPTS = """\
Grüße naïve café Ωμέγα Привет Ёлка Україна 東京都 世界、你好！ こんにちは カタカナ ｶﾀｶﾅ 한국어 안녕하세요
ไทย ก็ ภาษา हिन्दी नमस्ते বাংলা தமிழ் తెలుగు ಕನ್ನಡ മലയാളം සිංහල မြန်မာ ខ្មែរ ລາວ ქართული ՀայերենՙՁ አማርኛ ᏣᎳᎩ ᠮᠣᠩᠭᠣᠯ བོད་ཡིག
العربية مَرْحَبًا فارسی اردو עִבְרִית שלום ⴰⵎⴰⵣⵉⵖ 𐌲𐌿𐍄 𒀭𒈹 𓀀𓂀 𠮷𠀀 ﬁ ﬃ Ǆ ß ẞ İ ı ŉ ſ Å K
aбв世界abc한국1２３xЯz mixedСловоword中文English混合123テスト日本語です。next
"""
DIGITS = """\
0 1 12 123 1234 12345 123456 1234567890 3.14159 -1,000,000.00 1e10 0x1F 1_000 2024-02-29T12:34:56.789Z
50% $9.99 ٣٤٥ ۱۲۳ १२३ ๑๒๓ １２３４ ½ ¾ ²³ ₁₂ Ⅷ ⅻ ① ㈠ 〇一二三 𝟙𝟚𝟛 𐄇 a1b22c333d4444 ver1.2.3-rc4 1st 2nd
10km 3D 1² x½y 1٣२
"""
MARKS = (
    "e\u0301 e\u0301e\u0301 n\u0303o a\u0300\u0301\u0302\u0303b \u0301x 1\u0301 .\u0301 Z͑ͫ̓ͪ̂ͫ̽͏̴̙̤̞͉͚̯̞̠͍A̴̵̜̰͔ͫ͗͢L̠ͨͧͩ͘G̴̻͈͍͔̹̑͗̎̅͛́Ơ "
    "กำ नि क्‍ष क्‌ष ʼn ˈstɹɛs a\u20dd \u1dc0 \ufe0f \U000e0101 אָ ِّ ゙が が"
)
EMOJI = """\
🙂 🙂🙂 👍🏽 👩‍👩‍👧‍👦 👩🏿‍🚀 🏳️‍🌈 🏴‍☠️ 🇳🇴🇯🇵 🏴󠁧󠁢󠁥󠁮󠁧󠁿 1️⃣ #️⃣ ❤️ ❤ ☺︎ ©️ ™ ⌚ 🫠 🫶🏻 ok🙂ok 9🙂9 .🙂. 🎉\n🎉 ♀ ⚧ 🀄 🃏
"""
SYMBOLS = """\
!?…—–-_ «quoted» „so“ ‘x’ ¿qué? §¶†‡•·※ €£¥₿¢ ±×÷≈≠≤∞∫∑√∂ →⇒↔⟶ ∀x∈ℝ ┌─┐│█▓ ♥♪ ^~`´¨ \\ / | @user #tag a@b.co
=== ---- ____ **** .... ,,,, ;;;; ://// ()[]{}<> (((( )))) ?!?!?! ==> <=> !== ::= ... .\n,\r\n!\n\n;\r\r\n
"""
SPACES = (
    "a b  c   d    e     f \t g\t\th \t \t i\n j\n\nk\n \nl \n m  \n  n\r\no\r\n\r\np\rq\r\rr \r\n s\t\n\tt\n"
    "\t\n \x0bu\x0c\x0cv\x1c\x1d\x1e\x1fw\x85x\xa0y\xa0\xa0z \xa0 A\u1680B\u2000\u2001\u2002\u2003C\u2009"
    "D\u200aE\u2028F\u2029G\u202fH\u205fI\u3000J\u3000\u3000K \u200bL\u200c\u200dM\u2060N\ufeff"
    "O\u180eP\u00adQ   "
)
LOOKALIKES = """\
<|im_start|>user\n<|im_end|><|endoftext|> <|im_start |> < |im_end|> <|im_end|>> <|IM_END|>
<|im_end|><|im_end|><|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\n<|eot_id|><|eom_id|><|end_of_text|><|python_tag|>
<tool_call>{}</tool_call><tool_response></tool_response><think></think> <s></s> <unk> <pad> [PAD151646] [INST]
<|fim_prefix|> <|vision_start|> <|extra_0|> <repo_name> <file_sep> <jupyter_code> <0x0A> ▁word Ġword ĊĊ Ã© Ā ł
"""
CONTROLS = (
    "".join(map(chr, range(32))) + "a" + "b".join(map(chr, range(0x7F, 0xA0))) + "\x00\x00 \x01x\ufffd\uffff"
)
LONG = (
    "a" * 3000
    + " "
    + "Donaudampfschifffahrtsgesellschaft" * 20
    + "世" * 500
    + "1" * 500
    + "=" * 500
    + "_a" * 300
) + (
    "AGCT" * 250
    + "\n" * 200
    + " " * 300
    + "x"
    + "\t" * 100
    + "!" * 300
    + "🙂" * 100
    + "e\u0301" * 100
    + " \n" * 99
)
TEXTS = {
    "empty": "",
    "hello": "Hello, World! 123 4567",
    "python": PYTHON,
    "c": C,
    "rust": RUST,
    "javascript": JAVASCRIPT,
    "other languages": OTHERS,
    "carriage returns": (PYTHON + C).replace("\n", "\r\n"),
    "contractions": CONTRACTIONS,
    "scripts": SCRIPTS,
    "digits": DIGITS,
    "combining marks": MARKS,
    "emoji": EMOJI,
    "symbols": SYMBOLS,
    "white space": SPACES,
    "look-alikes of control tokens": LOOKALIKES,
    "control characters": CONTROLS,
    "long": LONG,
    "this file": Path(__file__).read_text(encoding="utf-8"),
}
PIECES = [
    *"'sStdDmM \n\r\t\v\f\x1c\x85\xa0\u2003\u2028\u3000\u200b\u0301ſK1٣½²ⅧaÉ世界ع𝒜🙂.!_(",
    *"re RE ve Ve ll LL lL ’s 23 4567 hello e\u0301 한국 हि ก็ 🏳️‍🌈 == </ <|im_end|> <| |> <tool_call>".split(
        " "
    ),
    *("  ", "   ", "\r\n", "\n\n", "'s", "'LL", " '"),
]


def mixtures(count: int) -> list[str]:
    """The pieces in any order: where one ends and the next begins is where cuts go wrong."""
    dice = random.Random(7)
    return ["".join(dice.choices(PIECES, k=dice.randint(2, 40))) for _ in range(count)]


CORPUS = [*TEXTS.values(), *mixtures(300)]
