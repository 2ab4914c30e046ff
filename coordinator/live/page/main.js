// The page: a conversation, one round of it in detail, and the cell beside them.

import { watchCell } from "./cell.js";
import { send, startAnew, submit } from "./chat.js";
import { offer } from "./controls.js";
import { $, say } from "./dom.js";

const THEMES = [
  ["", "Auto", "as the system"],
  ["light", "Light", "light"],
  ["dark", "Dark", "dark"],
];
let theme = 0;

function recolour() {
  theme = (theme + 1) % THEMES.length;
  const [name, text, words] = THEMES[theme];
  if (name) document.documentElement.dataset.theme = name;
  else delete document.documentElement.dataset.theme;
  say($("theme-text"), text);
  $("theme").setAttribute("aria-label", `Colours: ${words}`);
}

$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  submit();
});
$("prompt").addEventListener("keydown", (event) => {
  // Enter sends; with Shift, and on a screen keyboard always, it begins a new line.
  const screenKeyboard = () => matchMedia("(pointer: coarse)").matches;
  const sends = event.ctrlKey || event.metaKey || !(event.shiftKey || screenKeyboard());
  if (event.key !== "Enter" || event.isComposing || !sends) return;
  event.preventDefault();
  if (!$("go").hasAttribute("data-running")) $("form").requestSubmit();
});
$("anew").addEventListener("click", startAnew);
$("theme").addEventListener("click", recolour);

await offer(send);
watchCell();
