package nodeipam

// Tests of the blocks of a range, against a model that knows no arithmetic.

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"
)

func TestBlocks(t *testing.T) {
	for _, tc := range []struct {
		all  string
		bits int
		i    int
		want string
	}{
		{"10.244.0.0/16", 24, 0, "10.244.0.0/24"},
		{"10.244.0.0/16", 24, 255, "10.244.255.0/24"},
		{"10.244.0.0/16", 32, 0xABCD, "10.244.171.205/32"},
		{"10.0.0.0/14", 26, 0xFFF, "10.3.255.192/26"},
		{"0.0.0.0/0", 16, 0x8001, "128.1.0.0/16"},
		{"192.168.1.1/32", 32, 0, "192.168.1.1/32"},
		{"fd00:10::/48", 64, 0xFFFF, "fd00:10:0:ffff::/64"},
		{"fd00:10::/56", 64, 0x80, "fd00:10:0:80::/64"},
		{"fd00::/108", 124, 1, "fd00::10/124"},
		{"fd00::/112", 128, 0xFFFF, "fd00::ffff/128"},
	} {
		p := newPool(netip.MustParsePrefix(tc.all), tc.bits)
		got := p.block(tc.i)
		if got.String() != tc.want {
			t.Errorf("block %d of %s: %s, want %s", tc.i, tc.all, got, tc.want)
		}
		if i := p.index(got.Addr()); i != tc.i {
			t.Errorf("%s is in block %d of %s, want %d", got, i, tc.all, tc.i)
		}
	}
}

func TestSpan(t *testing.T) {
	for _, tc := range []struct {
		all   string
		bits  int
		c     string
		first int
		last  int
		ok    bool
	}{
		{"10.244.0.0/16", 24, "10.244.7.0/24", 7, 7, true},
		{"10.244.0.0/16", 24, "10.244.7.128/25", 7, 7, true},
		{"10.244.0.0/16", 24, "10.244.7.9/32", 7, 7, true},
		{"10.244.0.0/16", 24, "10.244.8.0/22", 8, 11, true},
		{"10.244.0.0/16", 24, "10.244.9.0/22", 8, 11, true}, // bits beyond the prefix
		{"10.244.0.0/16", 24, "10.244.0.0/16", 0, 255, true},
		{"10.244.0.0/16", 24, "10.0.0.0/8", 0, 255, true},
		{"10.244.0.0/16", 24, "0.0.0.0/0", 0, 255, true},
		{"10.244.0.0/16", 24, "10.245.0.0/24", 0, 0, false},
		{"10.244.0.0/16", 24, "fd00::/24", 0, 0, false},
		{"fd00:10::/48", 64, "fd00:10:0:ff00::/56", 0xff00, 0xffff, true},
		{"fd00:10::/48", 64, "::/0", 0, 0xffff, true},
	} {
		first, last, ok := newPool(netip.MustParsePrefix(tc.all), tc.bits).span(netip.MustParsePrefix(tc.c))
		if first != tc.first || last != tc.last || ok != tc.ok {
			t.Errorf("%s of %s: %d to %d (%v), want %d to %d (%v)", tc.c, tc.all, first, last, ok, tc.first, tc.last, tc.ok)
		}
	}
}

// TestPoolAgainstModel does many things at random and asks a model after each:
// a list of what is held, where a block is used if anything held overlaps it.
func TestPoolAgainstModel(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	for _, tc := range []struct {
		all  string
		bits int
	}{
		{"10.1.2.0/24", 24},
		{"10.1.2.0/24", 25},
		{"10.0.0.0/22", 26},
		{"10.64.0.0/10", 15},
		{"0.0.0.0/0", 4},
		{"10.0.0.0/29", 32},
		{"fd00::/61", 64},
		{"fd00:1:2::/124", 128},
		{"8000::/1", 5},
	} {
		t.Run(fmt.Sprintf("%s-%d", tc.all, tc.bits), func(t *testing.T) {
			p := newPool(netip.MustParsePrefix(tc.all), tc.bits)
			m := &model{t: t, p: p}
			for range 3000 {
				switch rnd.IntN(5) {
				case 0, 1:
					m.take()
				case 2:
					m.hold(randomPrefix(rnd, p))
				default:
					m.release(rnd)
				}
				if n := m.used(); p.taken != n {
					t.Fatalf("%d blocks taken, want %d, with %v held", p.taken, n, m.held)
				}
			}
			for len(m.held) > 0 {
				m.release(rnd)
			}
			if p.taken != 0 {
				t.Errorf("%d blocks are left over", p.taken)
			}
		})
	}
}

type model struct {
	t    *testing.T
	p    *pool
	held []netip.Prefix
	last int // the block that take returned last, plus one
}

func (m *model) isUsed(i int) bool {
	for _, h := range m.held {
		if h.Overlaps(m.p.block(i)) {
			return true
		}
	}
	return false
}

func (m *model) used() (n int) {
	for i := range m.p.users {
		if m.isUsed(i) {
			n++
		}
	}
	return n
}

func (m *model) take() {
	want, tries := -1, 0
	for ; tries < len(m.p.users); tries++ {
		if i := (m.last + tries) % len(m.p.users); !m.isUsed(i) {
			want = i
			break
		}
	}
	got, n, ok := m.p.take()
	if ok != (want >= 0) || n != tries {
		m.t.Fatalf("took %v after %d tries (%v), want block %d after %d, with %v held", got, n, ok, want, tries, m.held)
	}
	if !ok {
		return
	}
	if got != m.p.block(want) {
		m.t.Fatalf("took %v, want %v", got, m.p.block(want))
	}
	m.last = want + 1
	m.held = append(m.held, got)
}

func (m *model) hold(c netip.Prefix) {
	before, overlaps := m.used(), false
	for i := range m.p.users {
		overlaps = overlaps || c.Overlaps(m.p.block(i)) && m.isUsed(i)
	}
	fresh, shared := m.p.hold(c)
	m.held = append(m.held, c)
	if want := m.used() - before; fresh != want || shared != overlaps {
		m.t.Fatalf("holding %v took %d (shared %v), want %d (%v)", c, fresh, shared, want, overlaps)
	}
}

func (m *model) release(rnd *rand.Rand) {
	if len(m.held) == 0 {
		return
	}
	before, i := m.used(), rnd.IntN(len(m.held))
	c := m.held[i]
	m.held = append(m.held[:i], m.held[i+1:]...)
	if free, want := m.p.release(c), before-m.used(); free != want {
		m.t.Fatalf("releasing %v freed %d, want %d", c, free, want)
	}
}

// randomPrefix is mostly of the pool's range, of any length.
func randomPrefix(rnd *rand.Rand, p *pool) netip.Prefix {
	addr := p.block(rnd.IntN(len(p.users))).Addr()
	if rnd.IntN(8) == 0 {
		addr = netip.MustParseAddr([]string{"172.16.0.1", "2001:db8::1"}[rnd.IntN(2)])
	}
	return netip.PrefixFrom(addr, rnd.IntN(addr.BitLen()+1))
}

// TestLargest: as many blocks as there can be, all of them different.
func TestLargest(t *testing.T) {
	p := newPool(netip.MustParsePrefix("fd00:10::/48"), 64)
	seen := make(map[netip.Prefix]bool)
	for range 1 << maxBits {
		c, _, ok := p.take()
		if !ok || seen[c] || !p.all.Contains(c.Addr()) {
			t.Fatalf("took %v (%v) after %d", c, ok, len(seen))
		}
		seen[c] = true
	}
	if c, tries, ok := p.take(); ok || tries != 1<<maxBits {
		t.Errorf("took %v of a full pool after %d tries", c, tries)
	}
}

// BenchmarkTake is a node that comes and one that goes in a pool that is nearly
// full.
func BenchmarkTake(b *testing.B) {
	p := newPool(netip.MustParsePrefix("fd00:10::/48"), 64)
	for range 1<<maxBits - 1 {
		p.take()
	}
	b.ReportAllocs()
	for b.Loop() {
		c, _, ok := p.take()
		if !ok {
			b.Fatal("full")
		}
		p.release(c)
	}
}
