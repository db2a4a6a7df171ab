// A small Markdown for answers of models: paragraphs, headings, lists, tables, code. The result is Lit templates, in which
// text is text; nothing of it is ever HTML, and links are shown, not followed by themselves.

import { html, type TemplateResult } from "lit";

/** One piece of an answer. */
export type Block =
  | { kind: "text"; text: string }
  | { kind: "heading"; level: number; text: string }
  | { kind: "list"; ordered: boolean; start: number; items: string[] }
  | { kind: "table"; head: string[]; rows: string[][] }
  | { kind: "code"; language: string; text: string; open: boolean };

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([\w+#.-]*)[^`]*$/;
const HEADING = /^(#{1,6})\s+(.*?)\s*#*$/;
const ITEM = /^\s{0,6}(?:[-*+]|(\d{1,9})[.)])\s+(.*)$/;
const RULE = /^\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;

const cells = (line: string) => line.trim().replace(/^\||\|$/g, "").split("|").map((c) => c.trim());

/** Cuts an answer, which may still be growing, into blocks. */
export function blocks(text: string): Block[] {
  const out: Block[] = [];
  const lines = text.replace(/\r\n?/g, "\n").split("\n");
  let paragraph: string[] = [];
  const flush = () => {
    const joined = paragraph.join("\n").trimEnd();
    if (joined.trim() !== "") out.push({ kind: "text", text: joined });
    paragraph = [];
  };
  for (let i = 0; i < lines.length; i++) {
    const line = lines[i]!;
    const fence = FENCE.exec(line);
    if (fence) {
      flush();
      const mark = fence[1]!;
      const code: string[] = [];
      let open = true;
      for (i += 1; i < lines.length; i++) {
        const end = lines[i]!.trim();
        if (end.startsWith(mark) && end.replaceAll(mark[0]!, "") === "") {
          open = false;
          break;
        }
        code.push(lines[i]!);
      }
      out.push({ kind: "code", language: fence[2] ?? "", text: code.join("\n"), open });
      continue;
    }
    if (line.trim() === "") {
      flush();
      continue;
    }
    const heading = HEADING.exec(line);
    if (heading) {
      flush();
      out.push({ kind: "heading", level: heading[1]!.length, text: heading[2]! });
      continue;
    }
    if (line.includes("|") && RULE.test(lines[i + 1] ?? "") && (lines[i + 1] ?? "").includes("-")) {
      flush();
      const head = cells(line);
      const rows: string[][] = [];
      for (i += 2; i < lines.length && lines[i]!.includes("|"); i++) rows.push(cells(lines[i]!));
      i -= 1;
      out.push({ kind: "table", head, rows });
      continue;
    }
    const item = ITEM.exec(line);
    if (item) {
      flush();
      const ordered = item[1] !== undefined;
      const items = [item[2]!];
      for (i += 1; i < lines.length; i++) {
        const next = ITEM.exec(lines[i]!);
        if (next && (next[1] !== undefined) === ordered) items.push(next[2]!);
        else if (!next && /^\s{2,}\S/.test(lines[i]!) && !FENCE.test(lines[i]!)) items[items.length - 1] += `\n${lines[i]!.trim()}`;
        else break;
      }
      i -= 1;
      out.push({ kind: "list", ordered, start: Number(item[1] ?? 1), items });
      continue;
    }
    paragraph.push(line);
  }
  flush();
  return out;
}

/** Text with `code`, **strong** and *emphasis*. */
export function inline(text: string): (string | TemplateResult)[] {
  const out: (string | TemplateResult)[] = [];
  const pattern = /(`+)([^`]|[^`][\s\S]*?[^`])\1(?!`)|\*\*(?=\S)([\s\S]*?\S)\*\*|(?<![\w*])\*(?=[^\s*])([^*\n]*?[^\s*])\*(?![\w*])/g;
  let at = 0;
  for (const match of text.matchAll(pattern)) {
    out.push(text.slice(at, match.index));
    if (match[2] !== undefined) out.push(html`<code>${match[2]}</code>`);
    else if (match[3] !== undefined) out.push(html`<strong>${inline(match[3])}</strong>`);
    else out.push(html`<em>${match[4]}</em>`);
    at = match.index + match[0].length;
  }
  out.push(text.slice(at));
  return out;
}

/** The whole answer. */
export function render(text: string): TemplateResult[] {
  return blocks(text).map((b) => {
    switch (b.kind) {
      case "text":
        return html`<p>${inline(b.text)}</p>`;
      case "heading":
        return b.level <= 2 ? html`<h3>${inline(b.text)}</h3>` : html`<h4 style="margin:0">${inline(b.text)}</h4>`;
      case "list":
        return b.ordered
          ? html`<ol start=${b.start}>${b.items.map((i) => html`<li>${inline(i)}</li>`)}</ol>`
          : html`<ul>${b.items.map((i) => html`<li>${inline(i)}</li>`)}</ul>`;
      case "table":
        return html`<div class="scroll"><table><thead><tr>${b.head.map((c) => html`<th>${inline(c)}</th>`)}</tr></thead>
          <tbody>${b.rows.map((r) => html`<tr>${b.head.map((_, i) => html`<td>${inline(r[i] ?? "")}</td>`)}</tr>`)}</tbody></table></div>`;
      case "code":
        return html`<div class="codeblock"><header><span>${b.language || "text"}</span>${b.open ? html`<span style="min-height:28px"></span>` : html`<copy-button .text=${b.text} what="the code" wide></copy-button>`}</header>
          <pre class="code" tabindex="0" aria-label="Code">${b.text}</pre></div>`;
    }
  });
}
