package fleet

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/overh2"
	"github.com/hawser-project/hawser/tunnel/overquic"
	"github.com/hawser-project/hawser/tunnel/overyamux"
	"github.com/hawser-project/hawser/tunnel/qmux"
)

// Measuring takes more agents than testing:
//
//	go test ./cmd/fleet -run '^$' -bench . -benchtime 1x -fleet.agents 10000
var agents = flag.Int("fleet.agents", 500, "how many agents the benchmarks simulate")

const (
	// perProcess is how many agents one process holds, two descriptors each.
	perProcess = 2500
	// patience bounds every wait.
	patience = 5 * time.Minute
	// part says what a process of these tests plays, and what it needs for that.
	part = "HAWSER_FLEET_PART"
)

func TestMain(m *testing.M) {
	if args := strings.Fields(os.Getenv(part)); len(args) > 0 {
		if err := play(args); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	code := m.Run()
	removeProgram()
	os.Exit(code)
}

func play(args []string) error {
	if args[0] == "hub" {
		return playHub(args[1])
	}
	return playFleet(args[1:])
}

// answers writes a line for each command until the input ends.
func answers(answer func(command string) (any, error)) error {
	in, out := bufio.NewScanner(os.Stdin), json.NewEncoder(os.Stdout)
	for in.Scan() {
		a, err := answer(in.Text())
		if err == nil {
			err = out.Encode(a)
		}
		if err != nil {
			return err
		}
	}
	return in.Err()
}

// playHub is a server.
func playHub(dir string) error {
	h, err := NewHub(HubConfig{Address: "127.0.0.1:0", PKI: dir})
	if err != nil {
		return err
	}
	var stop func() error
	start := func() error {
		run, err := h.Open(context.Background())
		if err != nil {
			return err
		}
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- run(ctx) }()
		stop = func() error {
			cancel()
			return <-ended
		}
		return nil
	}
	if err := start(); err != nil {
		return err
	}
	fmt.Println(h.Addr())
	return errors.Join(answers(func(command string) (any, error) {
		switch command {
		case "restart":
			err := stop()
			return nil, errors.Join(err, start())
		case "measure":
			return h.Report(true)
		default:
			return h.Report(false)
		}
	}), stop())
}

// playFleet is some of the agents: TRANSPORT SERVER DIRECTORY FIRST COUNT.
func playFleet(args []string) error {
	var first, count int
	if _, err := fmt.Sscan(args[3]+" "+args[4], &first, &count); err != nil {
		return err
	}
	f, err := NewSessions(SessionsConfig{Server: args[1], PKI: args[2], First: first, Count: count, Transport: transports()[args[0]]})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- f.Run(ctx) }()
	fmt.Println("running")
	err = answers(func(command string) (any, error) {
		if command == "cut" {
			return f.Cut(), nil
		}
		return f.Connected(), nil
	})
	cancel()
	return errors.Join(err, <-ended)
}

func transports() map[string]tunnel.Transport {
	return map[string]tunnel.Transport{"qmux": qmux.Transport(), "yamux": overyamux.Transport(), "h2": overh2.Transport(), "quic": overquic.Transport()}
}

// A process plays a part.
type process struct {
	t    testing.TB
	name string
	in   io.WriteCloser
	out  *bufio.Scanner
}

// launch starts a process and returns it with its first line.
func launch(t testing.TB, args ...string) (*process, string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), part+"="+strings.Join(args, " "))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &process{t: t, name: args[0], in: in, out: bufio.NewScanner(out)}
	cmd.Cancel = func() error { return in.Close() } // it ends by itself then
	cmd.WaitDelay = time.Minute
	t.Cleanup(func() {
		_ = in.Close()
		_, _ = io.Copy(io.Discard, out)
		if err := cmd.Wait(); err != nil && t.Context().Err() == nil {
			t.Errorf("%s: %v", p.name, err)
		}
	})
	if !p.out.Scan() {
		t.Fatalf("%s did not start", p.name)
	}
	return p, p.out.Text()
}

// ask gives a command and reads the answer.
func (p *process) ask(command string, answer any) {
	p.t.Helper()
	if _, err := fmt.Fprintln(p.in, command); err != nil {
		p.t.Fatalf("%s: %v", p.name, err)
	}
	if !p.out.Scan() {
		p.t.Fatalf("%s: no answer to %s", p.name, command)
	}
	if err := json.Unmarshal(p.out.Bytes(), answer); err != nil {
		p.t.Fatalf("%s: %v", p.name, err)
	}
}

// A scene is a hub and a fleet, each in processes of their own.
type scene struct {
	t      testing.TB
	hub    *process
	fleets []*process
	empty  Report // before the agents came
}

func newScene(t testing.TB, transport string, count int) *scene {
	t.Helper()
	needFiles(t, transport, count)
	dir := filepath.Join(t.TempDir(), "pki")
	s := &scene{t: t}
	var addr string
	s.hub, addr = launch(t, "hub", dir)
	s.empty = s.measure()
	for first := 0; first < count; first += perProcess {
		f, _ := launch(t, "fleet", transport, addr, dir, fmt.Sprint(first), fmt.Sprint(min(perProcess, count-first)))
		s.fleets = append(s.fleets, f)
	}
	return s
}

// needFiles skips what takes more file descriptors at the hub than a process may have.
func needFiles(t testing.TB, transport string, count int) {
	t.Helper()
	need := uint64(count) + 1000
	if transport == "h2" {
		need += uint64(count) // a session is two connections
	}
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if limit.Cur < need {
		t.Skipf("SKIPPED: %d sessions over %s take %d file descriptors, and the limit is %d", count, transport, need, limit.Cur)
	}
}

func (s *scene) report() (r Report)  { s.t.Helper(); s.hub.ask("report", &r); return r }
func (s *scene) measure() (r Report) { s.t.Helper(); s.hub.ask("measure", &r); return r }

// cut breaks all connections and says how many there were.
func (s *scene) cut() (all int) {
	s.t.Helper()
	for _, f := range s.fleets {
		n := 0
		f.ask("cut", &n)
		all += n
	}
	return all
}

// until asks the hub for reports until done says that half, 99 in a hundred
// and all of n are there, and returns how long each took.
func (s *scene) until(n int, there func(Report) int) (half, most, all time.Duration) {
	s.t.Helper()
	began := time.Now()
	// Looking at ten thousand nodes costs the hub time that it has better use
	// for.
	tick := time.NewTicker(max(50*time.Millisecond, time.Duration(n)*50*time.Microsecond))
	defer tick.Stop()
	for {
		have := there(s.report())
		now := time.Since(began)
		if have*2 >= n && half == 0 {
			half = now
		}
		if have*100 >= n*99 && most == 0 {
			most = now
		}
		if have >= n {
			return half, most, now
		}
		if now > patience {
			s.t.Fatalf("after %v there are %d of %d: %+v", now, have, n, s.report())
		}
		<-tick.C
	}
}

func attached(r Report) int { return r.Sessions - r.Parked }

// TestCut: every agent's connection is cut; every session that can goes on, and the
// others begin anew.
func TestCut(t *testing.T) {
	const n = 40
	for name, tr := range transports() {
		t.Run(name, func(t *testing.T) {
			s := newScene(t, name, n)
			s.until(n, attached)
			before := s.report()
			if cut := s.cut(); cut < n {
				t.Fatalf("%d connections were cut", cut)
			}
			s.until(n, again(name, before))
			if !tr.Can.Resume {
				return
			}
			// An attempt that is slow has another beside it, so there may be more
			// handshakes than cuts; a session that had to begin anew would have been
			// refused first.
			if after := s.report(); after.Handshakes < before.Handshakes+n || after.Refused != before.Refused || after.Sessions != n {
				t.Errorf("before %+v, after %+v: the sessions are new ones", before, after)
			}
		})
	}
}

// TestRestart: the server forgets everything; every agent comes back.
func TestRestart(t *testing.T) {
	const n = 100
	s := newScene(t, "qmux", n)
	s.until(n, attached)
	var ok any
	s.hub.ask("restart", &ok)
	s.until(n, attached)
	if r := s.report(); r.Resumes != 0 {
		t.Errorf("sessions went on at a server that cannot know them: %+v", r)
	}
}

// BenchmarkStorm: how long until all agents are there, from the beginning, when
// all connections have been cut, and when the server was started anew; and what
// it costs the server. It fails if it takes more than stormBack or stormMemory.
func BenchmarkStorm(b *testing.B) {
	for name := range transports() {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				benchmarkStorm(b, name, *agents)
			}
		})
	}
}

const (
	// stormBack is how soon all agents have to be there again.
	stormBack = time.Minute
	// stormMemory is what an agent may cost the server at the worst moment, stormBase
	// what the server itself may.
	stormMemory, stormBase = 192 << 10, 256 << 20
)

func benchmarkStorm(b *testing.B, transport string, n int) {
	b.Helper()
	s := newScene(b, transport, n)
	show := func(what string, there func(Report) int) {
		b.Helper()
		before := s.report()
		half, most, all := s.until(n, there)
		r := s.report()
		b.Logf("%s %s: 50%% %v, 99%% %v, all %d %v; %v CPU, %d MiB at most, %d handshakes, %d refused", transport, what,
			half.Round(time.Millisecond), most.Round(time.Millisecond), n, all.Round(time.Millisecond),
			(r.CPU - before.CPU).Round(time.Millisecond), r.Peak>>20, r.Handshakes-before.Handshakes, r.Refused-before.Refused)
		b.ReportMetric(all.Seconds(), what+"-s")
		if all > stormBack {
			b.Errorf("%s %s: all %d were there after %v, want %v", transport, what, n, all, stormBack)
		}
		if r.Peak > stormBase+n*stormMemory {
			b.Errorf("%s %s: the server had %d MiB, at most %d", transport, what, r.Peak>>20, (stormBase+n*stormMemory)>>20)
		}
	}
	show("cold", attached)
	r := s.measure()
	b.ReportMetric(float64(r.RSS-s.empty.RSS)/float64(n)/1024, "KiB/agent")
	s.cut()
	show("cut", again(transport, r))
	var ok any
	s.hub.ask("restart", &ok)
	show("restart", attached)
}

// again counts the sessions that are there since everything was cut: those that went on
// or, where none does, those that took the place of one that ended.
func again(transport string, before Report) func(Report) int {
	if transports()[transport].Can.Resume {
		return func(r Report) int { return min(int(r.Resumes-before.Resumes), attached(r)) }
	}
	return func(r Report) int { return min(int(r.Ended-before.Ended), attached(r)) }
}

// idleCores is what 10,000 idle sessions may cost the server, in cores: the engine's mark,
// and what the keepalives of yamux and QUIC cost, which their libraries send.
func idleCores(transport string) float64 {
	if transport == "qmux" {
		return 0.1
	}
	return 0.3
}

// BenchmarkKeepalive: what idle sessions cost the server's processors. It fails above
// idleCores for 10,000 of them, and as much in proportion.
func BenchmarkKeepalive(b *testing.B) {
	for name := range transports() {
		b.Run(name, func(b *testing.B) {
			s := newScene(b, name, *agents)
			s.until(*agents, attached)
			for b.Loop() {
				span := 3 * tunnel.DefaultKeepalive
				before := s.measure() // it collects garbage, which is not what is measured
				<-time.After(span)
				cores := (s.report().CPU - before.CPU).Seconds() / span.Seconds()
				b.ReportMetric(cores*1000, "millicores")
				if most := max(0.01, idleCores(name)*float64(*agents)/10_000); cores > most {
					b.Errorf("%d idle sessions cost %.3f cores, at most %.3f", *agents, cores, most)
				}
			}
		})
	}
}

// TestIdleAgentIsCheap guards what an idle agent costs the server. The aim is 48 KiB over
// qmux; what is asserted leaves room for what the allocator has in hand, and not for two
// goroutines that keep 8 KiB of stack in place of 4.
func TestIdleAgentIsCheap(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector has a multiple of the memory")
	}
	const n = 1000
	for name := range transports() {
		t.Run(name, func(t *testing.T) {
			most := 112 << 10
			switch name {
			case "qmux":
				most = 54 << 10
			case "h2": // two connections, with x/net/http2's client on one and its server on the other
				most = 176 << 10
			}
			s := newScene(t, name, n)
			s.until(n, attached)
			r := s.measure()
			each := (r.RSS - s.empty.RSS) / n
			t.Logf("%s: %.1f KiB for an idle agent", name, float64(each)/1024)
			if each > most {
				t.Errorf("an idle agent costs %d bytes, at most %d", each, most)
			}
		})
	}
}
