"""/docs: a page that reads /openapi.json and shows it. It is all here: nothing is loaded from anywhere else."""

from __future__ import annotations

from typing import Final

POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"

PAGE: Final = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Clarion HTTP API</title>
<style>
  :root { color-scheme: light dark; --line: #8885; --soft: #8881 }
  body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
  h2 { margin: 2rem 0 .5rem; text-transform: capitalize }
  details { border: 1px solid var(--line); border-radius: 6px; margin: .4rem 0; padding: .4rem .8rem }
  summary { cursor: pointer } summary code { font-weight: 600 }
  .method { display: inline-block; min-width: 4.5rem; font-weight: 700; font-family: ui-monospace, monospace }
  .get { color: #2a7 } .post { color: #37c } .patch { color: #b70 } .delete { color: #c33 }
  table { border-collapse: collapse; width: 100% } td { border-top: 1px solid var(--line); padding: .2rem .5rem;
    vertical-align: top } pre { background: var(--soft); padding: .6rem; overflow: auto; border-radius: 6px }
  .said { opacity: .75 }
</style>
<h1>Clarion HTTP API</h1>
<p class="said" id="about">Reading <a href="/openapi.json">/openapi.json</a> …</p>
<main id="paths"></main>
<script>
const make = (tag, text, kind) => {
  const one = document.createElement(tag);
  if (text !== undefined) one.textContent = text;
  if (kind) one.className = kind;
  return one;
};
const name = (schema) => !schema ? "" : schema.$ref ? schema.$ref.split("/").pop()
  : schema.oneOf || schema.anyOf ? (schema.oneOf || schema.anyOf).map(name).join(" or ")
  : schema.type === "array" ? "list of " + name(schema.items) : schema.format || schema.type || "any";
const shown = (schema, all, depth) => {
  if (!schema) return "";
  if (schema.$ref) return shown(all[schema.$ref.split("/").pop()], all, depth);
  if (schema.properties && depth < 3) return Object.fromEntries(Object.entries(schema.properties).map(
    ([key, one]) => [key, shown(one, all, depth + 1)]));
  if (schema.type === "array") return [shown(schema.items, all, depth + 1)];
  return schema.examples ? schema.examples[0] : name(schema);
};
const bodies = (place, title, content, all) => {
  for (const [type, one] of Object.entries(content || {})) {
    place.append(make("p", title + ": " + type + " · " + name(one.schema), "said"));
    for (const each of one.schema?.oneOf || (one.schema ? [one.schema] : []))
      if (each.$ref || each.properties) place.append(make("pre", JSON.stringify(shown(each, all, 0), null, 2)));
  }
};
fetch("/openapi.json").then(answer => answer.json()).then(api => {
  const all = api.components.schemas, groups = {};
  document.getElementById("about").textContent = api.info.description + " Version " + api.info.version + ".";
  for (const [path, methods] of Object.entries(api.paths)) for (const [method, one] of Object.entries(methods))
    (groups[(one.tags || ["other"])[0]] ||= []).push([method, path, one]);
  for (const [tag, operations] of Object.entries(groups)) {
    document.getElementById("paths").append(make("h2", tag));
    for (const [method, path, one] of operations) {
      const box = make("details"), head = make("summary");
      head.append(make("span", method.toUpperCase(), "method " + method), make("code", path),
        make("span", "  " + (one.summary || ""), "said"));
      box.append(head);
      if (one.description) box.append(make("p", one.description));
      const table = make("table");
      for (const parameter of one.parameters || []) {
        const row = make("tr");
        row.append(make("td", parameter.name + (parameter.required ? " *" : "")),
          make("td", parameter.in + " · " + name(parameter.schema), "said"),
          make("td", parameter.description || ""));
        table.append(row);
      }
      if (table.children.length) box.append(table);
      bodies(box, "body", one.requestBody?.content, all);
      for (const [status, answer] of Object.entries(one.responses || {})) {
        box.append(make("p", status + " · " + answer.description));
        if (status !== "default") bodies(box, "answer", answer.content, all);
      }
      document.getElementById("paths").append(box);
    }
  }
}).catch(error => { document.getElementById("about").textContent = "The description cannot be read: " + error; });
</script>
</html>
"""
