// Links to a trajectory or a turn (#run=NAME&phase=0&id=ID&turn=2), and keyboard shortcuts.

function linkTo(row, turn) {
  const parts = new URLSearchParams({ run: row.runName, phase: row.phase, id: row.id });
  if (turn !== null) parts.set("turn", turn);
  return `#${parts}`;
}

function replaceLink(row, turn) {
  history.replaceState(null, "", linkTo(row, turn));
}

function copyLink(row, turn) {
  replaceLink(row, turn);
  copy(location.href, "Link");
}

function follow(index, viewer) {
  const parts = new URLSearchParams(location.hash.slice(1));
  if (!parts.has("run") || !parts.has("id")) {
    if (viewer.dialog.open) viewer.close();
    return;
  }
  const i = index.find(parts.get("run"), Number(parts.get("phase") ?? 0), parts.get("id"));
  if (i < 0) {
    byId("problem").replaceChildren(el("p", { class: "note bad" }, visible(`Trajectory "${parts.get("id")}" of run "${parts.get("run")}" is not in this report. The report of a large run contains only some of its trajectories.`)));
    return;
  }
  byId("problem").replaceChildren();
  const turn = Number(parts.get("turn"));
  viewer.open(i, turn >= 1 ? turn : null, false);
}

function listenToKeys(list, viewer) {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea")) return;
    const open = viewer.dialog.open;
    const inList = event.target.closest(".list") !== null;
    const inScroll = event.target.closest(".scroll") !== null;
    const by = { j: 1, k: -1, ...(open && !inScroll ? { ArrowRight: 1, ArrowLeft: -1 } : {}), ...(!open && inList ? { ArrowDown: 1, ArrowUp: -1 } : {}) }[event.key];
    if (by !== undefined) {
      event.preventDefault();
      if (open) viewer.move(by);
      else list.step(by);
    } else if (event.key === "g" && open) {
      event.preventDefault();
      viewer.toggleGroup();
    }
  });
}
