// Pages have paths of their own; another one is shown without loading anything.

// An address may have been typed: what is no encoding stays as it is.
const decode = part => { try { return decodeURIComponent(part); } catch { return part; } };

export const segments = () => location.pathname.replace(/^\/ui\/?/, "").split("/").filter(Boolean).map(decode);

export function go(path) {
  history.pushState(null, "", path);
  dispatchEvent(new PopStateEvent("popstate"));
  scrollTo(0, 0);
}

addEventListener("click", e => {
  const a = e.target.closest && e.target.closest("a[href^='/ui/']");
  if (!a || e.defaultPrevented || e.button || e.metaKey || e.ctrlKey || e.shiftKey || e.altKey || a.target) return;
  e.preventDefault();
  if (a.pathname !== location.pathname) go(a.pathname);
});
