package statuspage

// Tests that what a reader has chosen stays chosen while the fleet changes.

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/hawser-project/hawser/controlplane/evidence"
)

// choices is a page of n healthy nodes, each in the site that site says, in a browser.
func choices(t *testing.T, n int, site func(i int) string) (*Page, *browser) {
	t.Helper()
	p, s := newTestPage()
	p.look = 20 * time.Millisecond
	p.Decide(true)
	var all []Sample
	for i := range n {
		name := fmt.Sprintf("node-%03d", i)
		s.sessions[name] = evidence.Session{}
		p.set(testNode(name, site(i), yes, yes, yes))
		all = append(all, Sample{name, time.Duration(i+1) * time.Millisecond, i})
	}
	p.take(all)
	b := newBrowser(t, p)
	b.until(fmt.Sprintf(`document.querySelector("#shown").textContent .startsWith("%d of %d node")`, n, n))
	return p, b
}

// cards are the names of the sites in their order. The chosen one is in brackets.
func (b *browser) cards() string {
	b.t.Helper()
	return run[string](b, `[...document.querySelectorAll("#sites button")].map((e) =>
		e.getAttribute("aria-pressed") === "true" ? "[" + e.querySelector("b").textContent + "]" : e.querySelector("b").textContent).join(" ")`)
}

// focus is what has it: the ID of the element, or else its text.
func (b *browser) focus() string {
	b.t.Helper()
	return run[string](b, `document.activeElement.id || document.activeElement.textContent`)
}

// A chosen site stays chosen, and is seen to be, when its last node is deleted.
func TestBrowserChosenSiteWithoutNodes(t *testing.T) {
	t.Parallel()
	p, b := choices(t, 3, func(i int) string { return string(rune('a' + i)) })
	b.do(click("#sites li:nth-child(2) button"))
	b.until(`document.querySelector("#shown").textContent === "1 of 3 nodes"`)
	p.remove("node-001")
	b.until(`document.querySelector("#shown").textContent === "0 of 2 nodes"`)
	if got := b.cards(); got != "site a [site b] site c" {
		t.Fatalf("the cards are %s", got)
	}
	if got := run[string](b, `document.querySelector("#sites [aria-pressed=true] small").textContent`); got != "0 nodes" {
		t.Errorf("the card says %q", got)
	}
	b.do(press("#sites [aria-pressed=true]", kb.Enter))
	b.until(`document.querySelector("#shown").textContent === "2 of 2 nodes"`)
	if got := b.cards() + ", " + b.focus(); got != "site a site c, sites" {
		t.Errorf("then the cards and the focus are %s", got)
	}
}

// The focus stays with a site while its card moves.
func TestBrowserFocusOfASite(t *testing.T) {
	t.Parallel()
	p, b := choices(t, 3, func(i int) string { return string(rune('a' + i)) })
	run[bool](b, `document.querySelector("#sites li:nth-child(2) button").focus(), true`)
	for _, step := range []struct{ broken, cards string }{
		{"node-001 b", "site b site a site c"},
		{"node-000 a", "site a site b site c"},
		{"node-002 c", "site a site b site c"},
	} {
		node, site, _ := strings.Cut(step.broken, " ")
		p.set(testNode(node, site, no, yes, yes))
		b.until(`[...document.querySelectorAll("#sites button")].some((e) => e.textContent === "site ` + site + `Ready: 1 False")`)
		if got := b.cards(); got != step.cards {
			t.Errorf("once %s is broken the cards are %s", step.broken, got)
		}
		if got := b.focus(); !strings.HasPrefix(got, "site b") {
			t.Errorf("once %s is broken the focus is on %q", step.broken, got)
		}
	}
	b.do(chromedp.KeyEvent(kb.Enter))
	b.until(`document.querySelector("#shown").textContent === "1 of 3 nodes"`)
	if got := b.cards(); got != "site a [site b] site c" {
		t.Errorf("Enter chooses %s", got)
	}
}

// When details are closed the focus is on their node, wherever that is, or on the table.
func TestBrowserFocusAfterDetails(t *testing.T) {
	t.Parallel()
	p, b := choices(t, 200, func(int) string { return "a" })
	run[float64](b, `document.querySelector("#scroll").scrollTop = 100 * 32`)
	open := func(node string) {
		b.until(`[...document.querySelectorAll("#rows button")].some((e) => e.textContent === "` + node + `" && (e.focus(), e.click(), true))`)
		b.until(`document.querySelector("#details").open`)
	}
	shut := func() string {
		run[bool](b, `new Promise((done) => {
			document.querySelector("#details").addEventListener("close", () => done(true), { once: true });
			document.querySelector("#close").click();
		})`)
		return b.focus()
	}
	seen := func(node string) {
		t.Helper()
		if !run[bool](b, `(() => {
			const at = document.activeElement.getBoundingClientRect();
			return document.elementFromPoint((at.left + at.right) / 2, (at.top + at.bottom) / 2) === document.activeElement;
		})()`) {
			t.Errorf("%s has the focus and cannot be seen", node)
		}
	}
	open("node-103")
	p.set(testNode("node-103", "a", no, yes, yes)) // becomes the first
	b.until(`document.querySelector("#facts").textContent.includes("False")`)
	if got := shut(); got != "node-103" {
		t.Fatalf("the focus is on %q", got)
	}
	seen("node-103")
	open("node-103")
	p.set(testNode("node-103", "a", yes, yes, yes)) // is among the others again, below
	b.until(`!document.querySelector("#facts").textContent.includes("False")`)
	if got := shut(); got != "node-103" {
		t.Fatalf("the focus is on %q", got)
	}
	seen("node-103")
	open("node-103")
	p.remove("node-103")
	b.until(`!document.querySelector("#gone").hidden`)
	if got := shut(); got != "scroll" {
		t.Errorf("of a deleted node the focus is on %q", got)
	}
}

// A column says in which direction it is sorted.
func TestBrowserSortDirection(t *testing.T) {
	t.Parallel()
	_, b := choices(t, 3, func(int) string { return "a" })
	for column, want := range map[string][2]string{
		"node":    {"ascending node-000", "descending node-002"},
		"rtt":     {"descending node-002", "ascending node-000"},
		"streams": {"descending node-002", "ascending node-000"},
		"cut":     {"descending node-000", "ascending node-000"},
	} {
		for _, w := range want {
			b.do(click("[data-sort=" + column + "]"))
			direction, first, _ := strings.Cut(w, " ")
			got := run[string](b, `new Promise((done) => requestAnimationFrame(() => done(
				document.querySelector("th[aria-sort]").getAttribute("aria-sort") + " " + document.querySelector("#rows tr:not(.space) button").textContent)))`)
			if got != direction+" "+first {
				t.Errorf("%s: %s, want %s", column, got, w)
			}
		}
	}
}

func TestBrowserCordonedNode(t *testing.T) {
	t.Parallel()
	p, b := choices(t, 1, func(int) string { return "a" })
	n := testNode("node-000", "a", yes, yes, yes)
	n.Spec.Unschedulable = true
	p.set(n)
	b.until(`document.querySelector("#rows td.evictions").textContent !== ""`)
	if got := run[string](b, `document.querySelector("#rows td.evictions").textContent`); got != "cordoned" {
		t.Errorf("it says %q", got)
	}
}

// An answer with an error may be that of kubectl proxy.
func TestBrowserAnswerOfAProxy(t *testing.T) {
	t.Parallel()
	p, b := choices(t, 1, func(int) string { return "a" })
	run[bool](b, `fetch = async () => new Response("", { status: 500 }), true`) // of a true one the browser complains
	close(p.closed)
	b.until(`document.querySelector("#link").textContent.startsWith("Not connected")`)
	if got := run[string](b, `document.querySelector("#link").textContent`); !strings.Contains(got, ": the server, or a proxy before it, answers 500. ") {
		t.Errorf("it says %q", got)
	}
}
