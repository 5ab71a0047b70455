"""The style sheet of a report: light and dark, from a phone to a wide screen, no web fonts, no images.

Colours are those of Okabe and Ito, which colour-blind people tell apart; every result also has a symbol and a pattern.
"""

CSS = """
:root{color-scheme:light dark;--back:#f6f7f9;--card:#fff;--ink:#1a1d21;--soft:#59626d;--rule:#dfe3e8;--code:#eef1f4;
--ok:#0072b2;--bad:#c84a00;--maybe:#b37400;--on:#fff;--second:#7b7f86;--hit:#fdf0e6}
@media(prefers-color-scheme:dark){:root{--back:#111418;--card:#1a1e24;--ink:#e8ebee;--soft:#a3adb8;--rule:#323943;
--code:#242a32;--ok:#56b4e9;--bad:#ff8a4c;--maybe:#f0c14b;--on:#10141a;--second:#9aa3ad;--hit:#3a2618}}
*{box-sizing:border-box}
body{margin:0;background:var(--back);color:var(--ink);font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,
"Liberation Sans",sans-serif}
main{max-width:1080px;margin:0 auto;padding:20px 16px 48px}
h1{font-size:clamp(1.3rem,4vw,1.9rem);line-height:1.25;margin:.5rem 0;text-wrap:balance;overflow-wrap:anywhere}
h2{font-size:1.1rem;margin:0 0 .6rem}
p{margin:.4rem 0}
.soft,figcaption,.legend,caption{color:var(--soft);font-size:.9rem}
section,header{background:var(--card);border:1px solid var(--rule);border-radius:12px;padding:18px 20px;margin:0 0 16px}
header{border-left:8px solid var(--tone)}
.verified{--tone:var(--ok)}.rejected{--tone:var(--bad)}.inconclusive{--tone:var(--maybe)}.none{--tone:var(--soft)}
.badge{display:inline-block;background:var(--tone);color:var(--on);border-radius:99px;padding:2px 14px;font-weight:650}
dl{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,140px),1fr));gap:10px 20px;margin:12px 0 0}
dt{color:var(--soft);font-size:.85rem}dd{margin:0;overflow-wrap:anywhere}
.tiles dd{font-size:1.5rem;font-weight:650;line-height:1.2}
code,pre,.mono{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,"Liberation Mono",monospace;font-size:.86em}
code{overflow-wrap:anywhere}
pre{background:var(--code);border-radius:8px;padding:10px 12px;margin:.4rem 0 .8rem;white-space:pre-wrap;
overflow-wrap:anywhere}
.strip{list-style:none;display:flex;flex-wrap:wrap;gap:4px;padding:0;margin:14px 0 8px}
.strip li,.legend i{background:var(--tone);color:var(--on);border-radius:5px;display:flex;align-items:center;
justify-content:center;gap:4px;font-size:.85rem}
.strip.large li{flex:1 1 44px;max-width:90px;height:38px}
.strip.small{gap:2px}.strip.small li{width:13px;height:18px;font-size:.65rem;border-radius:3px}
.strip b{font-weight:400;opacity:.85}
.strip .rejected,.legend .rejected{background-image:repeating-linear-gradient(135deg,#0003 0 4px,#0000 4px 9px)}
.strip .inconclusive,.legend .inconclusive{background-image:radial-gradient(#0004 1.2px,#0000 1.5px);
background-size:7px 7px}
.strip .none,.legend .none{background:none;border:1px dashed var(--soft);color:var(--soft)}
.legend{display:flex;flex-wrap:wrap;gap:4px 18px}.legend span{display:inline-flex;align-items:center;gap:6px}
.legend i{width:20px;height:20px;font-style:normal}
.unseen{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}
.curves{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,330px),1fr));gap:18px}
figure{margin:0}figure svg{width:100%;height:auto;display:block}
figure text{font-family:system-ui,-apple-system,"Segoe UI",Roboto,"Liberation Sans",sans-serif!important}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:.92rem}
caption{text-align:left;padding:0 0 6px}
th,td{text-align:left;padding:6px 14px 6px 0;border-bottom:1px solid var(--rule);vertical-align:top;
overflow-wrap:anywhere;min-width:5.5em}
thead th{color:var(--soft);font-weight:500;font-size:.85rem}
tbody th{font-weight:500}
.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
thead .n{white-space:normal}
.figures tbody th{overflow-wrap:normal}
tr.differs td,tr.differs th{background:var(--hit)}
tr.differs th::before{content:"≠ ";color:var(--bad);font-weight:700}
.bar{display:block;height:6px;border-radius:3px;background:var(--rule);margin-top:4px}
.bar i{display:block;height:6px;border-radius:3px;background:var(--ok)}.bar i.over{background:var(--bad)}
summary{cursor:pointer;color:var(--soft)}
footer{color:var(--soft);font-size:.85rem;padding:0 4px}
@media(max-width:560px){section,header{padding:14px}main{padding:10px 8px 32px}.strip.large li{flex-basis:38px}}
@media print{body{background:none}section,header{break-inside:avoid}}
"""
