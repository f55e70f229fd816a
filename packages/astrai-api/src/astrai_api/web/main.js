/** Puts the page together: tabs, state of the server, dialogs, keys. */

import { ChatView } from "./chat.js";
import { Connection } from "./connection.js";
import { byId } from "./dom.js";
import { EngineView } from "./engine_view.js";
import { setUpKeyDialog } from "./key_dialog.js";

const TABS = ["chat", "engine"];

const connection = new Connection();
const askForKey = setUpKeyDialog(connection);
const chat = new ChatView(connection, { showRequest });
const engine = new EngineView(byId("engine"), connection);

function showStatus() {
  byId("status").dataset.state = connection.state;
  byId("status-text").textContent = connection.state === "key" ? "An API key is needed" : connection.text;
  const retry = byId("status-retry");
  retry.hidden = !["away", "key", "lost"].includes(connection.state);
  retry.textContent = connection.state === "key" ? "Enter key" : "Retry now";
}

/** Shows a view. The engine's feed is open only while somebody looks. */
function open(name) {
  for (const tab of TABS) {
    const selected = tab === name;
    byId(tab).hidden = !selected;
    byId(`tab-${tab}`).setAttribute("aria-selected", selected);
    byId(`tab-${tab}`).tabIndex = selected ? 0 : -1;
  }
  history.replaceState(null, "", name === "chat" ? location.pathname : `#${name}`);
  engine.setShown(name === "engine");
  if (name === "chat") chat.focus();
}

function showRequest(requestId) {
  open("engine");
  engine.selectByRequestId(requestId);
}

const isTyping = (element) => element.matches("input, textarea, select");

const SHORTCUTS = {
  "/": () => open("chat"),
  "?": () => byId("help-dialog").showModal(),
};
const ALT_SHORTCUTS = {
  Digit1: () => open("chat"),
  Digit2: () => open("engine"),
  KeyN() {
    open("chat");
    chat.startNew();
  },
};

document.addEventListener("keydown", (event) => {
  if (document.querySelector("dialog[open]") || event.ctrlKey || event.metaKey) return;
  const action = event.altKey ? ALT_SHORTCUTS[event.code] : !isTyping(event.target) && SHORTCUTS[event.key];
  if (action) {
    event.preventDefault();
    action();
  } else if (event.key === "Escape") {
    if (byId("chat").hidden) engine.select(null);
    else chat.stop();
  }
});

for (const [index, name] of TABS.entries()) {
  const tab = byId(`tab-${name}`);
  tab.addEventListener("click", () => open(name));
  tab.addEventListener("keydown", (event) => {
    if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
    const other = TABS[(index + 1) % TABS.length];
    open(other);
    byId(`tab-${other}`).focus();
  });
}
byId("theme").addEventListener("click", () => window.toggleTheme());
byId("help").addEventListener("click", () => byId("help-dialog").showModal());
byId("status-retry").addEventListener("click", () => (connection.state === "key" ? askForKey() : connection.check()));
connection.addEventListener("change", showStatus);
connection.check();
open(TABS.includes(location.hash.slice(1)) ? location.hash.slice(1) : "chat");
