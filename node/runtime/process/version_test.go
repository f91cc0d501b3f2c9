package process

// Agents and shims of different versions.

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hawser-project/hawser/node/runtime"
)

// golden reads a file as version 0 of this program wrote it.
func golden(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", "v0", name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestOldFiles reads files of version 0.
func TestOldFiles(t *testing.T) {
	s, err := decodeSpec(golden(t, specName))
	if err != nil {
		t.Fatal(err)
	}
	c := s.Container
	if s.Version != 0 || s.ID != "ead3838b110b707ad0db96a9762375d7" || c.Pod != testPod || c.Name != "c" || c.Attempt != 3 ||
		c.Image != "registry.example/app:1" || len(c.Argv) != 3 || len(c.Env) != 1 || c.Resources.MemoryBytes != 1<<28 ||
		c.UID == nil || *c.UID != 0 || s.Isolation != None || len(s.Hide) != 1 || len(s.Cgroup) != 4 || s.CreatedAt.IsZero() {
		t.Errorf("spec %+v", s)
	}
	var rec record
	if err := json.Unmarshal(golden(t, statusName), &rec); err != nil {
		t.Fatal(err)
	}
	if rec.Version != 0 || rec.State != runtime.Running || rec.PID != 15510 || rec.ShimPID != 15503 || rec.ShimStart != 189985 || rec.StartedAt.IsZero() {
		t.Errorf("record %+v", rec)
	}
}

// A peer stands in for a shim of another version: it holds the lock, listens on the
// socket and answers each request with a fixed message.
type peer struct {
	dir     string
	lock    *os.File
	ln      net.Listener
	answers map[string][]string // by request, word for word
	over    chan struct{}       // closed when the container has ended
	mute    atomic.Bool         // nothing is answered until then

	mu   sync.Mutex
	got  []string
	wg   sync.WaitGroup
	ends sync.Once
}

func newPeer(t *testing.T, data, id string, spec, status []byte, answers map[string][]string) *peer {
	t.Helper()
	p := &peer{dir: filepath.Join(data, "c", id), answers: answers, over: make(chan struct{})}
	if err := os.MkdirAll(p.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string][]byte{specName: spec, statusName: status, stderrName: nil} {
		if err := os.WriteFile(filepath.Join(p.dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var err error
	if p.lock, err = lock(p.dir); err != nil {
		t.Fatal(err)
	}
	f, err := listenShim(p.dir)
	if err != nil {
		t.Fatal(err)
	}
	p.ln, err = net.FileListener(f)
	_ = f.Close()
	if err != nil {
		t.Fatal(err)
	}
	p.wg.Go(p.accept)
	t.Cleanup(func() {
		p.end()
		p.wg.Wait()
	})
	return p
}

// end is the end of the shim.
func (p *peer) end() {
	p.ends.Do(func() {
		close(p.over)
		_ = p.ln.Close()
		_ = p.lock.Close()
	})
}

func (p *peer) accept() {
	for {
		nc, err := p.ln.Accept()
		if err != nil {
			return
		}
		p.wg.Go(func() {
			defer nc.Close()
			var raw json.RawMessage
			if readFrame(nc, &raw) != nil {
				return
			}
			p.mu.Lock()
			p.got = append(p.got, string(raw))
			p.mu.Unlock()
			if p.mute.Load() {
				<-p.over
				return
			}
			var req struct{ Op string }
			if json.Unmarshal(raw, &req) != nil {
				return
			}
			for i, a := range p.answers[req.Op] {
				if i > 0 {
					<-p.over
				}
				b, _ := frame(json.RawMessage(a))
				if _, err := nc.Write(b); err != nil {
					return
				}
			}
			if req.Op == opStop {
				_ = os.WriteFile(filepath.Join(p.dir, statusName), []byte(oldEnd), 0o600)
				p.end()
			}
		})
	}
}

// The messages of a shim of version 0, byte for byte.
const (
	oldRecord = `{"state":"running","pid":15510,"shimPid":15503,"shimStart":189985,"startedAt":"2026-11-23T00:15:20.946299182Z","exitCode":0}`
	oldEnd    = `{"state":"exited","pid":15510,"shimPid":15503,"shimStart":189985,"startedAt":"2026-11-23T00:15:20.946299182Z","endedAt":"2026-11-23T00:16:20Z","exitCode":3}`
	oldUsage  = `{"usage":{"Time":"2026-11-23T00:15:22.82683269Z","CPUNanos":70000000,"MemoryBytes":3002368,"PIDs":2,"SampledCPUNs":0}}`
	oldNo     = `{"failure":{"kind":"other","message":"unknown request \"nonsense\""}}`
)

func oldAnswers() map[string][]string {
	return map[string][]string{
		opWatch: {`{"record":` + oldRecord + `}`, `{"record":` + oldEnd + `}`},
		opStop:  {`{"record":` + oldRecord + `}`},
		opStats: {oldUsage},
		opResize: {
			`{"failure":{"kind":"other","message":"the container has no terminal"}}`,
		},
	}
}

// without removes fields from the spec of another machine.
func without(t *testing.T, spec []byte, fields ...string) []byte {
	t.Helper()
	var m map[string]any
	if err := json.Unmarshal(spec, &m); err != nil {
		t.Fatal(err)
	}
	for _, f := range fields {
		delete(m, f)
	}
	b, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestOldShim adopts a container with a shim of version 0, and uses the operations of that
// version.
func TestOldShim(t *testing.T) {
	dir, id := t.TempDir(), "ead3838b110b707ad0db96a9762375d7"
	p := newPeer(t, dir, id, without(t, golden(t, specName), "cgroup"), golden(t, statusName), oldAnswers())
	g := newRig(t, Config{DataDir: dir, Isolation: None})
	st := g.status(id)
	if st.State != runtime.Running || st.Attempt != 3 || st.Image != "registry.example/app:1" || st.StartedAt.IsZero() {
		t.Errorf("status %+v", st)
	}
	if u, err := g.Usage(g.ctx, id); err != nil || u.MemoryBytes != 3002368 || u.PIDs != 2 {
		t.Errorf("usage %+v, %v", u, err)
	}
	if err := g.Resize(g.ctx, id, runtime.Size{Width: 1, Height: 2}); err == nil || !strings.Contains(err.Error(), "no terminal") {
		t.Errorf("resize: %v", err)
	}
	if err := g.Stop(g.ctx, id, 7*time.Second); err != nil {
		t.Error(err)
	}
	if st = g.wait(id); st.ExitCode != 3 || st.EndedAt.IsZero() {
		t.Errorf("status %+v", st)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	want := []string{`{"op":"watch"}`, `{"op":"stats"}`, `{"op":"resize","size":{"Width":1,"Height":2}}`, `{"op":"stop","graceMs":7000}`}
	if got := strings.Join(p.got, "\n"); got != strings.Join(want, "\n") {
		t.Errorf("the old shim was asked\n%s\nwant\n%s", got, strings.Join(want, "\n"))
	}
}

// logBuffer keeps a log.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) lines(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.b.String(), text)
}

const told = "containers that a newer agent has started are left running"

// wantHeld checks that a container is listed as running, and not touched.
func wantHeld(t *testing.T, g *rig, id string) {
	t.Helper()
	if st := g.status(id); st.State != runtime.Running || st.Pod != testPod || st.StartedAt.IsZero() {
		t.Errorf("status %+v", st)
	}
	_, exec := g.Exec(g.ctx, id, []string{"true"}, runtime.Stdio{})
	for what, err := range map[string]error{
		"stop": g.Stop(g.ctx, id, 0), "exec": exec, "remove": g.Remove(g.ctx, id),
		"attach": g.Attach(g.ctx, id, runtime.Stdio{}), "resize": g.Resize(g.ctx, id, runtime.Size{}),
	} {
		if err == nil || what != "remove" && !strings.Contains(err.Error(), "upgrade the agent") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestNewerFiles: containers with files of a later version are listed, so that they are not
// started a second time, and run until they end.
func TestNewerFiles(t *testing.T) {
	dir, log := t.TempDir(), &logBuffer{}
	spec := `{"version":99,"id":"@","createdAt":"2027-01-01T00:00:00Z","isolation":{"kind":"vm"},"cgroup":7,
		"container":{"Pod":{"Namespace":"default","Name":"pod","UID":"uid-1"},"Name":"@","Attempt":2,"Image":"i","Argv":"not a list"}}`
	var peers []*peer
	for _, id := range []string{"one", "two"} {
		s := strings.ReplaceAll(spec, "@", id)
		peers = append(peers, newPeer(t, dir, id, []byte(s), []byte(`{"state":["running"]}`), nil))
	}
	g := newRig(t, Config{DataDir: dir, Isolation: None, Log: slog.New(slog.NewTextHandler(log, nil))})
	wantHeld(t, g, "one")
	if n := log.lines(told); n != 1 || log.lines("level=ERROR") != 1 {
		t.Errorf("told %d times, want once:\n%s", n, log.b.String())
	}
	for _, p := range peers {
		p.mu.Lock()
		if len(p.got) != 0 {
			t.Errorf("a newer shim was asked %q", p.got)
		}
		p.mu.Unlock()
	}
	if err := os.WriteFile(filepath.Join(peers[0].dir, statusName), []byte(`{"version":99,"state":"exited","exitCode":3,"more":true}`), 0o600); err != nil {
		t.Fatal(err)
	}
	peers[0].end()
	if st := g.wait("one"); st.ExitCode != 3 || st.Attempt != 2 {
		t.Errorf("status %+v", st)
	}
	peers[1].end()
	if st := g.wait("two"); st.ExitCode != 137 || st.Reason != "ContainerStatusUnknown" {
		t.Errorf("status %+v", st)
	}
}

// TestNewerShim: the files are readable, and the shim reports a later version.
func TestNewerShim(t *testing.T) {
	dir, id := t.TempDir(), "ead3838b110b707ad0db96a9762375d7"
	newer := map[string][]string{opWatch: {`{"record":{"version":99,` + oldRecord[1:] + `}`, `{"record":` + oldEnd + `}`}}
	p := newPeer(t, dir, id, without(t, golden(t, specName), "cgroup"), golden(t, statusName), newer)
	g := newRig(t, Config{DataDir: dir, Isolation: None})
	wantHeld(t, g, id)
	p.end()
	g.wait(id)
}

// TestUpgradeAgain: an agent holds a container of a later version, and the next agent adopts
// it.
func TestUpgradeAgain(t *testing.T) {
	eachIsolation(t, func(t *testing.T, iso Isolation) {
		dir := t.TempDir()
		newer := newRig(t, Config{DataDir: dir, Isolation: iso})
		id := newer.idle("c")
		newer.waitLog(id, "ready")
		newer.stop()
		path := filepath.Join(dir, "c", id, specName)
		written, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		raised := bytes.Replace(written, []byte(`{"version":1,`), []byte(`{"version":99,`), 1)
		if bytes.Equal(raised, written) {
			t.Fatalf("no version in %s", written)
		}
		if err := os.WriteFile(path, raised, 0o600); err != nil {
			t.Fatal(err)
		}
		older := newRig(t, Config{DataDir: dir, Isolation: iso})
		wantHeld(t, older, id)
		older.stop()
		if err := os.WriteFile(path, written, 0o600); err != nil {
			t.Fatal(err)
		}
		again := newRig(t, Config{DataDir: dir, Isolation: iso})
		if code, err := again.Exec(again.ctx, id, []string{"true"}, runtime.Stdio{}); code != 0 || err != nil {
			t.Errorf("exec: %d, %v", code, err)
		}
		if err := again.Stop(again.ctx, id, 0); err != nil {
			t.Error(err)
		}
	})
}

// FuzzSpec: a damaged file, or one of any version, affects no other container.
func FuzzSpec(f *testing.F) {
	for _, name := range []string{specName, statusName} {
		b, err := os.ReadFile(filepath.Join("testdata", "v0", name))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte(`{"version":99,"id":"x","container":{"Argv":3}}`))
	f.Add([]byte(`{"version":-1,"id":"x","isolation":"none"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := decodeSpec(b)
		if err != nil {
			return
		}
		if s.ID == "" {
			t.Error("a spec without an id")
		}
		if s.Version > version && (s.Container.Argv != nil || s.Cgroup != nil || s.Isolation != "") {
			t.Errorf("of a later version: %+v", s)
		}
		again, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		if s2, err := decodeSpec(again); err != nil || s2.ID != s.ID || s2.Version != s.Version {
			t.Errorf("%s: %v", again, err)
		}
	})
}

// FuzzReply: no answer of a shim makes the agent panic.
func FuzzReply(f *testing.F) {
	for _, s := range []string{oldUsage, oldNo, `{"record":` + oldEnd + `}`, `{"exit":1}`, `{"hasFd":true}`, `{"failure":{"kind":"start"}}`} {
		b, err := frame(json.RawMessage(s))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var rep reply
		if readFrame(bytes.NewReader(b), &rep) != nil {
			return
		}
		if rep.Failure != nil && rep.Failure.err() == nil {
			t.Error("a failure without an error")
		}
		if rep.Record != nil {
			c := newContainer(&spec{ID: "x"}, *rep.Record)
			_ = c.status()
		}
	})
}
