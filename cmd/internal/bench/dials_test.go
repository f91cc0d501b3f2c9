package bench

import (
	"strconv"
	"sync"
	"testing"
	"time"
)

// BenchmarkDials dials to the first byte back, one dial after the other and 64 at a time.
// It tells the processor time that control and node take for each, which what else the
// machine does moves less than how long it takes.
func BenchmarkDials(b *testing.B) {
	for _, name := range []string{Relay, QMux} {
		for _, dialers := range []int{1, 64} {
			b.Run(name+"/"+strconv.Itoa(dialers), func(b *testing.B) { benchmarkDials(b, name, dialers) })
		}
	}
}

func benchmarkDials(b *testing.B, name string, dialers int) {
	c, err := Config{Transports: []string{name}}.withDefaults()
	if err != nil {
		b.Fatal(err)
	}
	r := &run{cfg: c, dir: b.TempDir()}
	if err := makeKeys(r.dir); err != nil {
		b.Fatal(err)
	}
	s, err := r.start(b.Context(), name)
	if err != nil {
		b.Fatal(err)
	}
	defer func() {
		if err := s.close(); err != nil {
			b.Error(err)
		}
	}()
	used := func() (sum time.Duration) {
		for _, p := range []*process{s.control, s.node} {
			u, err := p.used()
			if err != nil {
				b.Fatal(err)
			}
			sum += u.CPU
		}
		return sum
	}
	if _, err := dialEcho(b.Context(), s, nil); err != nil { // what only the first one needs
		b.Fatal(err)
	}
	before := used()
	b.ResetTimer()
	var wg sync.WaitGroup
	for i := range dialers {
		wg.Go(func() {
			for range (b.N + i) / dialers {
				if _, err := dialEcho(b.Context(), s, nil); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	b.ReportMetric(float64((used()-before).Microseconds())/float64(b.N), "cpu-µs/op")
}
