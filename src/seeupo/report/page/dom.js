// DOM elements, texts and numbers. Text from a run becomes text nodes and plain attributes, never markup.

function el(name, attributes, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(key, value);
    else element.setAttribute(key, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

function byId(id) {
  return document.getElementById(id);
}

function reveal(...ids) {
  for (const id of ids) byId(id).hidden = false;
}

// Invisible characters, and those that reorder the text around them, are replaced by their code points.
const INVISIBLE = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u00ad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060\u2066-\u2069\ufeff\u{e0000}-\u{e007f}]/gu;

function visible(text) {
  return String(text).replace(INVISIBLE, (character) => {
    const code = character.codePointAt(0);
    if (code < 0x20) return String.fromCharCode(0x2400 + code);
    return `[U+${code.toString(16).toUpperCase().padStart(4, "0")}]`;
  });
}

const MINUS = "\u2212";
const NONE = "\u2013";

// Three significant digits; very large and very small numbers with an exponent.
function num(value, digits = 3) {
  if (value === null || value === undefined || !Number.isFinite(value)) return NONE;
  if (value === 0) return "0";
  const size = Math.abs(value);
  let text;
  if (size >= 1e6 || size < 1e-3) text = String(Number(size.toPrecision(digits)).toExponential()).replace("e+", "e");
  else if (size >= 1000) text = Math.round(size).toLocaleString("en-US");
  else text = String(Number(size.toPrecision(digits)));
  return (value < 0 ? MINUS : "") + text.replace("e-", `e${MINUS}`);
}

// Enough digits to show how far a ratio is from 1.
function ratioText(ratio) {
  if (ratio === null || ratio === undefined || !Number.isFinite(ratio)) return NONE;
  const apart = Math.abs(ratio - 1);
  return num(ratio, apart === 0 || apart >= 0.01 ? 4 : Math.min(8, 2 - Math.floor(Math.log10(apart))));
}

// Enough digits to distinguish two numbers, if possible.
function distinctDigits(one, other) {
  if (one === null || other === null || one === other) return 3;
  for (let digits = 3; digits < 7; digits++) if (num(one, digits) !== num(other, digits)) return digits;
  return 7;
}

function signed(value, digits = 3) {
  return (value > 0 ? "+" : "") + num(value, digits);
}

function count(value) {
  return Number(value).toLocaleString("en-US");
}

function plural(value, one, many = `${one}s`) {
  return `${count(value)} ${value === 1 ? one : many}`;
}

function inUnit(value, unit) {
  if (value === null || value === undefined) return NONE;
  if (unit === "share") return value.toFixed(3);
  if (unit === "seconds") return `${num(value)} s`;
  if (unit === "tokens") return count(Math.round(value));
  return num(value, 4);
}

function ordinal(n) {
  const ending = n % 100 >= 11 && n % 100 <= 13 ? "th" : ({ 1: "st", 2: "nd", 3: "rd" }[n % 10] ?? "th");
  return `${n}${ending}`;
}

// Announced to screen readers, and shown briefly at the bottom. An open dialog hides everything outside of it.
const toast = byId("toast");
let toastTimer = 0;
function announce(text) {
  (document.querySelector("dialog[open]") ?? document.body).append(toast);
  toast.textContent = text;
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => (toast.textContent = ""), 2500);
}

async function copy(text, what) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // No permission, or a browser that allows the clipboard for web sites only.
    const area = el("textarea", { class: "visually-hidden", readonly: true });
    area.value = text;
    (document.querySelector("dialog[open]") ?? document.body).append(area);
    area.select();
    const copied = document.execCommand("copy");
    area.remove();
    if (!copied) return announce(`${what} could not be copied`);
  }
  announce(`${what} copied`);
}

function copyButton(label, what, text) {
  return el("button", { type: "button", class: "quiet", click: () => copy(text(), what) }, label);
}

// A box that scrolls sideways, so that the page never does.
function scrollBox(label, ...children) {
  return el("div", { class: "scroll", role: "region", tabindex: "0", "aria-label": label }, ...children);
}

function table(head, rows, attributes) {
  return el(
    "table",
    attributes,
    el("thead", null, el("tr", null, head.map((cell) => el("th", { scope: "col" }, cell)))),
    el("tbody", null, rows.map((row) => el("tr", null, row.map((cell) => el("td", null, cell))))),
  );
}

function labeled(label, field) {
  return el("label", { class: "field" }, el("span", null, label), field);
}

function select(options, attributes) {
  return el("select", attributes, options.map(([value, label]) => el("option", { value }, label)));
}
