"""The look of a report: one sheet for light, dark and paper, from a telephone's width up."""

CSS = """
:root{--bg:#fbfaf7;--card:#fff;--ink:#1d2430;--soft:#5a6474;--rule:#e2ded5;--grid:#ebe8e0;--code:#f3f1ea;--map:#f4f2ec;
--c0:#1d66b3;--c1:#c8501f;--c2:#1f7f57;--c3:#8347a5;--c4:#9a7100;--c5:#bb2f6e;--c6:#2d7f8f;--c7:#6b6b6b;
color-scheme:light dark}
@media(prefers-color-scheme:dark){:root{--bg:#12151b;--card:#191d25;--ink:#e8eaee;--soft:#a2abba;--rule:#2c323d;
--grid:#262c36;
--code:#222834;--map:#1f2530;--c0:#6db3ff;--c1:#ff9365;--c2:#5bd09b;--c3:#c79bff;--c4:#e8c25a;--c5:#ff8fbf;
--c6:#86d2e0;--c7:#b4b4b4}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--bg);color:var(--ink);font:16px/1.6 system-ui,-apple-system,"Segoe UI",Roboto,
"Helvetica Neue",sans-serif}
main{max-width:1060px;margin:0 auto;padding:32px 20px 64px}
header{margin-bottom:24px}
h1{font-size:2rem;line-height:1.2;margin:0 0 4px;letter-spacing:-.02em;overflow-wrap:anywhere}
h2{font-size:1.2rem;margin:0 0 4px;letter-spacing:-.01em}
h3{font-size:1rem;margin:24px 0 6px}
p{margin:0 0 12px;max-width:82ch}
.about{max-width:100ch}
.try{max-width:none}
.sub,.about,figcaption,.legend{color:var(--soft);font-size:.9rem}
section,.lead{background:var(--card);border:1px solid var(--rule);border-radius:12px;padding:22px 24px;margin:0 0 18px}
.lead{font-size:1.06rem}
.lead p:last-child{margin-bottom:0}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(135px,1fr));gap:10px;margin:0 0 18px;padding:0;
list-style:none}
.tiles li{background:var(--card);border:1px solid var(--rule);border-radius:12px;padding:12px 14px}
.tiles b{display:block;white-space:nowrap;font-size:1.2rem;font-weight:650;line-height:1.25;letter-spacing:-.02em;
font-variant-numeric:tabular-nums}
.tiles span{color:var(--soft);font-size:.8rem}
code,pre{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;font-size:.86em}
.try code{display:block;background:var(--code);border-radius:8px;padding:10px 14px;overflow-x:auto;
margin-top:6px}
.try span{white-space:nowrap}
figure{margin:14px 0 0}
svg{display:block;width:100%;height:auto}
.chart text{font-size:12px;fill:var(--soft);font-variant-numeric:tabular-nums}
.chart .grid{stroke:var(--grid);stroke-width:1;fill:none}
.line{fill:none;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}
.line.faint{stroke-width:1.3;opacity:.55}
.line.again{stroke-dasharray:2 5}.dots.again{opacity:.6}
.band{opacity:.18;stroke:none}
.narrow{display:none}
.legend{display:flex;flex-wrap:wrap;gap:2px 18px;list-style:none;margin:6px 0 0;padding:0}
.legend i{display:inline-block;width:18px;height:3px;border-radius:2px;margin-right:7px;vertical-align:middle}
.legend .faint{opacity:.5;height:2px}
.legend .again{background-image:repeating-linear-gradient(90deg,transparent 0 3px,var(--card) 3px 6px)!important}
.map{width:100%}
.map .ground{fill:var(--map)}
.map .ink{fill:var(--c0)}
.map text{font:10px ui-monospace,Menlo,Consolas,"DejaVu Sans Mono",monospace;fill:var(--ink);text-anchor:middle}
.masks image{image-rendering:pixelated}
.masks{position:absolute;width:0;height:0}
.align .ground{fill:var(--map)}
.align .ink{fill:var(--c0)}
.align text{font:13px system-ui,sans-serif;fill:var(--ink)}
.align .soft{font-size:11px;fill:var(--soft)}
.maps{display:grid;grid-template-columns:repeat(var(--across),1fr);gap:16px;margin-top:14px}
.maps figure,.large figure{margin:0}
.maps svg{border-radius:4px}
.large{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(440px,100%),1fr));gap:24px;margin-top:12px}
.scroll{overflow-x:auto}
.large .scroll svg{min-width:420px}
figcaption{line-height:1.35;margin-top:6px;font-size:.82rem}
figcaption b{color:var(--ink)}
.passage{background:var(--code);border-radius:8px;padding:10px 14px;white-space:pre-wrap;overflow-wrap:anywhere;
margin:10px 0 0}
.samples{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(420px,100%),1fr));gap:16px;margin-top:12px}
.samples h3{margin:0 0 6px}
.samples pre{background:var(--code);border-radius:8px;padding:12px 14px;margin:0;white-space:pre-wrap;
overflow-wrap:anywhere}
details{margin-top:14px}
summary{cursor:pointer;color:var(--soft);font-size:.9rem}
summary:hover{color:var(--ink)}
:focus-visible{outline:2px solid var(--c0);outline-offset:2px;border-radius:3px}
table{border-collapse:collapse;font-size:.88rem;font-variant-numeric:tabular-nums}
td,th{text-align:left;padding:4px 18px 4px 0;border-bottom:1px solid var(--rule);vertical-align:top}
td{overflow-wrap:anywhere}
td.n,th.n{text-align:right;white-space:nowrap}
th{font-weight:600;color:var(--soft)}
ul.notes{margin:0;padding-left:20px}
footer{color:var(--soft);font-size:.85rem;margin-top:24px}
@media(max-width:640px){main{padding:20px 10px 40px}section,.lead{padding:16px 14px;border-radius:10px}h1{
font-size:1.55rem}
.maps{grid-template-columns:1fr 1fr;gap:12px}.wide{display:none}.narrow{display:block}.tiles{
grid-template-columns:1fr 1fr}.tiles b{font-size:1.15rem}}
@media print{:root{--bg:#fff;--card:#fff;--ink:#000;--soft:#444;--rule:#ccc;--grid:#ddd;--code:#f5f5f5;--map:#f2f2f2;
--c0:#1d66b3;
--c1:#c8501f;--c2:#1f7f57;--c3:#8347a5;--c4:#9a7100;--c5:#bb2f6e;--c6:#2d7f8f;--c7:#6b6b6b}body{font-size:10.5pt;
-webkit-print-color-adjust:exact;print-color-adjust:exact}main{max-width:none;padding:0}section,.lead,.tiles li{
border-radius:0;
border-width:0 0 1px;padding:8px 0}details:not([open]){display:none}section,figure,.samples>div{break-inside:avoid}
.samples{grid-template-columns:1fr 1fr}h2,h3{
break-after:avoid}
.maps{gap:8px}.samples pre{font-size:7.5pt;padding:8px}}
""" + "".join(
    f".line.c{i}{{stroke:var(--c{i})}}.band.c{i},.dots.c{i}{{fill:var(--c{i})}}.legend .c{i}{{background:var(--c{i})}}"
    for i in range(8)
)
