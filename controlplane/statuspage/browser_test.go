package statuspage

// Tests of the page in Chromium, at 1, 100 and 10,000 nodes. go test -artifacts keeps the
// screenshots.

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"

	"github.com/hawser-project/hawser/controlplane/evidence"
)

// patience bounds how long the browser may take for anything.
const patience = 60 * time.Second

// A browser is Chromium, which shows one page.
type browser struct {
	t   testing.TB
	ctx context.Context
	url string // of the page
	dir string // of screenshots
}

// newBrowser starts Chromium and has it show p. What the page throws or the browser
// complains of fails the test.
func newBrowser(t testing.TB, p *Page) *browser {
	t.Helper()
	return newBrowserOf(t, p.Handler(testPath))
}

// testPath is where the page is.
const testPath = "/hawser/status/"

func newBrowserOf(t testing.TB, page http.Handler) *browser {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("SKIPPED: the status page is not tried in a browser: it takes the package chromium")
	}
	s := httptest.NewServer(page)
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.WindowSize(1400, 1000))
	if os.Getuid() == 0 {
		options = append(options, chromedp.NoSandbox)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewExecAllocator(ctx, options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	err = chromedp.Listen(ctx, func(ev any) {
		switch ev := ev.(type) {
		case *runtime.EventExceptionThrown:
			t.Errorf("the page throws: %s", ev.ExceptionDetails.Exception.Description)
		case *log.EventEntryAdded:
			t.Errorf("the browser says of %s: %s", ev.Entry.URL, ev.Entry.Text)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	b := &browser{t, ctx, s.URL + testPath, t.ArtifactDir()}
	b.do(chromedp.Navigate(b.url))
	return b
}

func (b *browser) do(steps ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	if err := chromedp.Do(b.ctx, steps...); err != nil {
		b.t.Fatal(err)
	}
}

func click(selector string) chromedp.Action[chromedp.Void] {
	return chromedp.Click(chromedp.CSS(selector))
}

func write(selector, text string) chromedp.Action[chromedp.Void] {
	return chromedp.SendKeys(chromedp.CSS(selector), text)
}

// press presses a key where the focus is put.
func press(selector, key string) chromedp.Action[chromedp.Void] {
	return chromedp.Steps(chromedp.Focus(chromedp.CSS(selector)), chromedp.KeyEvent(key))
}

// run is the value of an expression of the page, or of its promise.
func run[T any](b *browser, expression string) T {
	b.t.Helper()
	v, err := chromedp.Run(b.ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	if err != nil {
		b.t.Fatalf("%s: %v", expression, err)
	}
	return v
}

// until waits until an expression of the page is true.
func (b *browser) until(expression string) {
	b.t.Helper()
	run[bool](b, "new Promise((done) => { const look = () => ("+expression+") ? done(true) : setTimeout(look, 10); look(); })")
}

// picture keeps what is to be seen.
func (b *browser) picture(name string) {
	b.t.Helper()
	png, err := chromedp.Run(b.ctx, chromedp.CaptureScreenshot())
	if err == nil {
		err = os.WriteFile(filepath.Join(b.dir, name+".png"), png, 0o600)
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

// prefers has the reader prefer light or dark.
func (b *browser) prefers(scheme string) {
	b.t.Helper()
	_, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
	})
	if err != nil {
		b.t.Fatal(err)
	}
}

// fleet fills a page with n nodes in n/50+1 sites, of which one is cut off, some nodes
// are not ready, and one is evicted from.
func fleet(n int) *Page {
	p, s := newTestPage()
	p.Decide(true)
	sites := n/50 + 1
	now := time.Now()
	var all []Sample
	for i := range n {
		name, site := fmt.Sprintf("node-%05d", i), fmt.Sprintf("plant-%03d", i%sites)
		node := testNode(name, site, yes, yes, yes)
		session := evidence.Session{}
		switch {
		case i%sites == 1:
			node = testNode(name, site, unknown, no, unknown)
			p.Freeze(name, evidence.SiteLostNetwork, fmt.Sprintf("all 50 nodes of site %s fell silent together at %s; pods are kept until %s",
				site, now.Add(-5*time.Minute).UTC().Format(time.RFC3339), now.Add(55*time.Minute).UTC().Format(time.RFC3339)), now.Add(55*time.Minute))
			session.Changes = []evidence.Change{{At: now.Add(-5 * time.Minute), State: evidence.Parked, Cause: evidence.Silent, Err: "nothing was heard for 20s"}}
		case i%97 == 7:
			node = testNode(name, site, no, yes, no)
		case i%31 == 3:
			session.Changes = []evidence.Change{{At: now.Add(-time.Duration(i) * time.Minute), State: evidence.Parked, Cause: evidence.Closed, Err: "read: connection reset by peer"}}
		}
		for j := range node.Status.Conditions {
			node.Status.Conditions[j].LastTransitionTime.Time = now.Add(-5 * time.Minute)
		}
		s.sessions[name] = session
		p.set(node)
		if node.Status.Conditions[0].Status != unknown {
			all = append(all, Sample{name, time.Duration(5+i%40) * time.Millisecond, i % 7})
		}
	}
	for round := range samples {
		for i := range all {
			all[i].RTT += time.Duration((i*7+round*13)%5-2) * time.Millisecond
		}
		p.take(all)
	}
	p.Audit().ProcessEvents(event("ann", "create", &auditinternal.ObjectReference{APIGroup: "apps", Resource: "deployments", Namespace: "shop", Name: "web"}, ""),
		event("system:serviceaccount:shop:deployer", "patch", &auditinternal.ObjectReference{Resource: "pods", Subresource: "exec", Namespace: "shop", Name: "web-0"}, ""))
	return p
}

func TestBrowserOneNode(t *testing.T) {
	t.Parallel()
	p, s := newTestPage()
	p.cfg.Audited = false
	s.sessions["node-1"] = evidence.Session{}
	p.set(testNode("node-1", "", yes, yes, yes))
	b := newBrowser(t, p)
	b.until(`document.querySelector("#summary").textContent === "1 node: 1 Ready."`)
	b.until(`document.querySelector("#audit-note").textContent.includes("--audit-policy-file")`)
	b.picture("one")
	p.remove("node-1")
	b.until(`document.querySelector("#summary").textContent === "0 nodes: 0 Ready."`)
	b.picture("none")
}

// As long as the server has said nothing there is no fleet of "0 nodes".
func TestBrowserBeforeTheFirstMessage(t *testing.T) {
	t.Parallel()
	p, _ := newTestPage()
	page := p.Handler(testPath)
	b := newBrowserOf(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == testPath+"fleet" {
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush() // the browser waits if it fails
			<-r.Context().Done()
			return
		}
		page.ServeHTTP(w, r)
	}))
	b.until(`document.querySelector("#link").textContent === "Live"`)
	run[bool](b, `dispatchEvent(new Event("resize")), new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))`)
	if got := run[string](b, `document.querySelector("#summary").textContent + document.querySelector("#shown").textContent`); got != "" {
		t.Errorf("it says %q", got)
	}
}

// When another server answers the page keeps the place in the table, the node whose details are
// shown, and the focus, though that server counts nodes otherwise.
func TestBrowserAnotherServer(t *testing.T) {
	t.Parallel()
	const nodes = 2000 // in several messages
	first, second := fleet(nodes), fleet(0)
	for i := range nodes {
		name := fmt.Sprintf("node-%05d", nodes-1-i)
		second.cfg.Source.(*source).sessions[name] = evidence.Session{}
		second.set(testNode(name, "plant-000", yes, yes, no))
	}
	servers := make(chan *Page, 2)
	servers <- first
	servers <- second
	b := newBrowserOf(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p := first
		if r.URL.Path == testPath+"fleet" {
			select {
			case p = <-servers:
			default:
				p = second
			}
		}
		p.Handler(testPath).ServeHTTP(w, r)
	}))
	b.until(`document.querySelector("#shown").textContent === "2,000 of 2,000 nodes"`)
	b.do(click("[data-sort=node]"))
	b.until(`document.querySelector("#rows tr:not(.space)").textContent.startsWith("node-00000")`)
	place := run[float64](b, `document.querySelector("#scroll").scrollTop = 1900 * 32`)
	b.until(`[...document.querySelectorAll("#rows button")].some((e) => e.textContent === "node-01905" && (e.focus(), e.click(), true))`)
	b.until(`document.querySelector("#details-title").textContent === "node-01905" && !document.querySelector("#facts").textContent.includes("False")`)
	close(first.closed)
	b.until(`document.querySelector("#summary").textContent.startsWith("2,000 nodes: 2,000 Ready.") && document.querySelector("#facts").textContent.includes("False")`)
	if got := run[string](b, `document.querySelector("#details-title").textContent`); got != "node-01905" {
		t.Errorf("the details are now those of %s", got)
	}
	b.do(chromedp.KeyEvent(kb.Escape))
	b.until(`!document.querySelector("#details").open`)
	if got := run[string](b, `document.activeElement.textContent`); got != "node-01905" {
		t.Errorf("the focus is now on %.80q", got)
	}
	if got := run[float64](b, `document.querySelector("#scroll").scrollTop`); got != place {
		t.Errorf("the table was scrolled to %.0f, and is now at %.0f", place, got)
	}
}

// The page follows what happens, by mouse and keyboard, and no words of a node are more
// than words.
func TestBrowserHundredNodes(t *testing.T) {
	t.Parallel()
	p := fleet(100)
	p.look = 50 * time.Millisecond
	b := newBrowser(t, p)
	b.until(`document.querySelector("#shown").textContent === "100 of 100 nodes"`)
	b.prefers("light")
	b.picture("hundred-light")
	b.prefers("dark")
	b.picture("hundred-dark")
	b.do(chromedp.EmulateViewport(420, 900))
	b.picture("hundred-narrow")
	b.prefers("light")
	b.do(chromedp.EmulateViewport(1000, 900))
	b.picture("hundred-medium")
	b.do(chromedp.EmulateViewport(1400, 1000))
	run[bool](b, `document.querySelector("#audit").scrollIntoView(), true`)
	b.until(`document.querySelector("#lines").textContent.includes("pods/exec shop web-0")`)
	b.picture("audit")

	p.set(testNode("node-00000", "plant-000", no, no, no))
	b.until(`document.querySelector("#rows tr:not(.space)").textContent.startsWith("node-00000")`)
	b.do(write("#filter", "node-0000"))
	b.until(`document.querySelector("#shown").textContent === "10 of 100 nodes"`)
	b.do(click("#broken"))
	b.until(`document.querySelector("#rows").children.length < 12 && document.querySelector("#rows tr:not(.space)").textContent.startsWith("node-00000")`)
	b.do(click("#broken"), write("#filter", strings.Repeat(kb.Backspace, 9)))
	b.do(click(`#sites button`))
	b.until(`document.querySelectorAll("#sites [aria-pressed=true]").length === 1 && document.querySelector("#shown").textContent.startsWith("33 of")`)
	b.do(click(`#sites button`))
	b.do(press(`[data-sort=node]`, kb.Enter))
	b.until(`document.querySelector("th[aria-sort=ascending]").textContent === "Node" && document.querySelector("#rows tr:not(.space)").getAttribute("aria-rowindex") === "2"`)

	b.do(press(`#rows tr:not(.space) button`, kb.Enter))
	b.until(`document.querySelector("#details").open && document.querySelector("#facts").textContent.includes("Because: of this")`)
	b.picture("details")
	b.do(chromedp.KeyEvent(kb.Escape))
	b.until(`!document.querySelector("#details").open && document.activeElement.textContent === "node-00000"`)
	p.set(testNode("node-00000", "plant-000", yes, yes, yes)) // the focus stays
	b.until(`document.activeElement.closest("tr").cells[2].textContent === "✓ True" && document.activeElement.textContent === "node-00000"`)

	p.set(hostile("node-00001"))
	b.until(`document.querySelector("#rows").textContent.includes("✕ False") && document.querySelector("#sites").textContent.includes("<img src=x")`)
	b.do(write("#filter", "onerror"))
	b.until(`document.querySelector("#shown").textContent === "1 of 100 nodes"`)
	b.do(click(`#rows tr:not(.space) button`))
	b.until(`document.querySelector("#details").open && document.querySelector("#facts").textContent.includes("<script>")`)
	b.picture("hostile")
	if got := run[string](b, `document.querySelectorAll("img, script:not([src='page.js'])").length + " " + document.title`); got != "0 Hawser fleet" {
		t.Errorf("words have become markup: %s", got)
	}
}

// Every column can be reached at every width, beside the nodes' names, and the page itself does
// not scroll sideways.
func TestBrowserWidths(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, fleet(30))
	b.until(`document.querySelector("#shown").textContent === "30 of 30 nodes"`)
	for _, width := range []int{400, 640, 900, 1199, 1400} {
		b.do(chromedp.EmulateViewport(int64(width), 900))
		b.until(fmt.Sprintf("window.innerWidth === %d", width))
		for _, column := range []string{"node", "site", "ready", "tunnel", "path", "rtt", "streams", "cut", "evictions"} {
			got := run[string](b, fmt.Sprintf(`(() => {
				const heading = document.querySelector("[data-sort=%s]").parentElement;
				const cell = document.querySelector("#rows tr:not(.space)").cells[heading.cellIndex];
				const table = document.querySelector("#scroll").getBoundingClientRect();
				const name = document.querySelector("#rows tr:not(.space) button");
				heading.scrollIntoView({ inline: "end", block: "nearest" });
				for (const e of [heading, cell, name]) {
					const at = e.getBoundingClientRect();
					const seen = document.elementFromPoint((at.left + at.right) / 2, (at.top + at.bottom) / 2);
					if (at.width < 30 || at.left < table.left - 1 || at.right > table.right + 1 || !e.contains(seen)) {
						return e.textContent + ": " + JSON.stringify(at) + " of " + JSON.stringify(table) + ", there is " + (seen && seen.outerHTML);
					}
				}
				return document.documentElement.scrollWidth > window.innerWidth ? "the page scrolls" : "";
			})()`, column))
			if got != "" {
				t.Errorf("%d px, column %s: %s", width, column, got)
			}
		}
		name := run[float64](b, `document.querySelector("#nodes .node").getBoundingClientRect().width`)
		what := run[float64](b, `document.querySelector("#lines td:nth-child(4)").getBoundingClientRect().width`)
		if name < min(320, float64(width)/4) || what < 320 {
			t.Errorf("%d px: a node's name has %.0f px, what was audited has %.0f px", width, name, what)
		}
		b.picture(fmt.Sprintf("width-%d", width))
	}
}

// Of ten thousand nodes a few rows are there, wherever one scrolls to.
func TestBrowserTenThousandNodes(t *testing.T) {
	t.Parallel()
	p := fleet(10_000)
	b := newBrowser(t, p)
	b.until(`performance.getEntriesByName("fleet").length === 1`)
	at := func(mark string) float64 {
		return run[float64](b, fmt.Sprintf("performance.getEntriesByName(%q)[0].startTime", mark))
	}
	t.Logf("first paint after %.0f ms, rows after %.0f ms, all rows after %.0f ms", at("first-contentful-paint"), at("rows"), at("fleet"))
	b.until(`document.querySelector("#shown").textContent === "10,000 of 10,000 nodes"`)
	b.picture("ten-thousand")
	run[float64](b, `document.querySelector("#scroll").scrollTop = 1e9`)
	b.until(`document.querySelector("#rows tr:nth-last-child(2)").getAttribute("aria-rowindex") === "10001"`)
	b.picture("ten-thousand-end")
	for _, what := range []string{
		`document.querySelectorAll("#rows tr").length < 80`, `document.querySelectorAll("#sites li").length <= 24`,
		`document.querySelector("#nodes").getAttribute("aria-rowcount") === "10001"`,
	} {
		if !run[bool](b, what) {
			t.Errorf("not true: %s", what)
		}
	}
	t.Logf("sorted and drawn anew in %.0f ms", run[float64](b, `(() => {
		const began = performance.now();
		document.querySelector("[data-sort=rtt]").click();
		return new Promise((done) => requestAnimationFrame(() => done(performance.now() - began)));
	})()`))
	b.until(`document.querySelector("th[aria-sort]").textContent === "Round trip"`)
	for i := range 10_000 {
		p.set(testNode(fmt.Sprintf("node-%05d", i), "plant-000", yes))
	}
	b.until(`document.querySelector("#summary").textContent === "10,000 nodes: 10,000 Ready."`)
}
