package statuspage

// How long a reader waits for the page.

import (
	"fmt"
	"testing"

	"github.com/chromedp/chromedp"
)

// maxPaint is the mark in milliseconds for the first paint of the page.
const maxPaint = 300

// BenchmarkFirstPaint opens the page of 10,000 nodes in Chromium, and fails if the first paint or
// the first rows come later than the mark. All rows are there later.
func BenchmarkFirstPaint(b *testing.B) {
	page := newBrowser(b, fleet(10_000))
	marks := map[string]float64{"first-contentful-paint": 0, "rows": 0, "fleet": 0}
	for b.Loop() {
		page.do(chromedp.Navigate(page.url))
		page.until(`performance.getEntriesByName("fleet").length === 1`)
		for name := range marks {
			marks[name] += run[float64](page, fmt.Sprintf("performance.getEntriesByName(%q)[0].startTime", name))
		}
	}
	for name, total := range marks {
		mean := total / float64(b.N)
		b.ReportMetric(mean, "ms/"+name)
		if name != "fleet" && mean > maxPaint {
			b.Errorf("%s after %.0f ms, more than %d", name, mean, maxPaint)
		}
	}
}
