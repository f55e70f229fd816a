/** Asks for the API key when the server wants one. */

import { key } from "./api.js";
import { byId } from "./dom.js";

/** @param {import("./connection.js").Connection} connection */
export function setUpKeyDialog(connection) {
  const dialog = byId("key-dialog");
  const input = byId("key");

  function ask() {
    byId("key-reason").textContent = key.get() ? connection.text : "This server asks for a key.";
    if (!dialog.open) dialog.showModal();
    input.select();
  }

  connection.addEventListener("change", () => connection.state === "key" && ask());
  byId("key-cancel").addEventListener("click", () => dialog.close());
  byId("key-form").addEventListener("submit", () => {
    key.set(input.value.trim(), byId("key-keep").checked);
    connection.text = "";  // so that the same refusal is a change, and asks again
    connection.check();
  });
  return ask;
}
