package spdyframes

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/moby/spdystream/spdy"
)

// A client writes frames.
type client struct {
	t *testing.T
	bytes.Buffer
	framer *spdy.Framer
}

func newClient(t *testing.T) *client {
	t.Helper()
	c := &client{t: t}
	var err error
	if c.framer, err = spdy.NewFramer(&c.Buffer, nil); err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *client) open(id spdy.StreamId, kind string, more ...string) {
	c.t.Helper()
	h := http.Header{}
	h.Set(typeHeader, kind)
	for i, v := range more {
		h.Set(fmt.Sprint("more-", i), v)
	}
	c.write(&spdy.SynStreamFrame{StreamId: id, Headers: h})
}

func (c *client) write(f spdy.Frame) {
	c.t.Helper()
	if err := c.framer.WriteFrame(f); err != nil {
		c.t.Fatal(err)
	}
}

func (c *client) say(id spdy.StreamId, flags spdy.DataFlags, text string) {
	c.t.Helper()
	c.write(&spdy.DataFrame{StreamId: id, Flags: flags, Data: []byte(text)})
}

// TestGuardPasses: what kubectl sends comes out as it was, whatever the pieces in which it is read.
func TestGuardPasses(t *testing.T) {
	c := newClient(t)
	for i, kind := range []string{errorType, "stdin", "stdout", "stderr", "resize"} {
		c.open(spdy.StreamId(2*i+1), kind)
	}
	c.write(&spdy.PingFrame{Id: 1})
	c.say(1, spdy.DataFlagFin, "")
	c.say(3, 0, "echo hello\n")
	c.say(9, 0, `{"Width":80}`)
	c.say(3, spdy.DataFlagFin, "exit\n")
	c.write(&spdy.RstStreamFrame{StreamId: 9, Status: spdy.Cancel})
	c.write(&spdy.GoAwayFrame{})
	sent := bytes.Clone(c.Bytes())
	for what, from := range map[string]io.Reader{"whole": bytes.NewReader(sent), "in pieces": iotest.HalfReader(bytes.NewReader(sent))} {
		got, err := io.ReadAll(NewGuard(from, Limits{Streams: 5, Open: 5}))
		if err != nil || !bytes.Equal(got, sent) {
			t.Errorf("%s: %d bytes came out as %d, %v", what, len(sent), len(got), err)
		}
	}
	got, err := io.ReadAll(NewGuard(iotest.OneByteReader(bytes.NewReader(sent)), Limits{Streams: 5}))
	if data := dataOf(t, got); err != nil || string(data[3]) != "echo hello\nexit\n" {
		t.Errorf("byte by byte: %q, %v", data[3], err)
	}
}

// dataOf is what streams carry.
func dataOf(t *testing.T, b []byte) map[uint32][]byte {
	t.Helper()
	var f Frames
	data := map[uint32][]byte{}
	for len(b) > 0 {
		body, _, rest, err := f.Next(b)
		if err != nil {
			t.Fatal(err)
		}
		if body != nil {
			data[f.Stream()] = append(data[f.Stream()], body...)
		}
		b = rest
	}
	if f.have > 0 {
		t.Fatal("the last frame is incomplete")
	}
	return data
}

// TestGuardRefuses: nothing of a frame comes out that takes the reader's memory or streams, and
// nothing after it.
func TestGuardRefuses(t *testing.T) {
	nothing := strings.Repeat("\x00", 1<<20)
	for what, send := range map[string]func(*client){
		"a third stream":               func(c *client) { c.open(5, "stdin") },
		"data on the stream of errors": func(c *client) { c.say(1, 0, "x") },
		"a reply":                      func(c *client) { c.write(&spdy.SynReplyFrame{StreamId: 3}) },
		"more headers":                 func(c *client) { c.write(&spdy.HeadersFrame{StreamId: 3, Headers: http.Header{"X": {"y"}}}) },
		"bytes after a ping": func(c *client) {
			_, _ = c.Write([]byte{0x80, 3, 0, 6, 0, 0, 0, 12, 0, 0, 0, 1, 0, 0, 0, 9, 0, 0, 0, 0})
		},
		"bytes after a reset": func(c *client) {
			_, _ = c.Write([]byte{0x80, 3, 0, 3, 0, 0, 0, 16, 0, 0, 0, 3, 0, 0, 0, 5, 0x80, 3, 0, 6, 0, 0, 0, 4})
		},
		"bytes after settings": func(c *client) {
			_, _ = c.Write([]byte{0x80, 3, 0, 4, 0, 0, 0, 12, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0})
		},
		"a megabyte of nothing in a small frame": func(c *client) { c.open(5, nothing) },
		"a large frame":                          func(c *client) { _, _ = c.Write([]byte{0x80, 3, 0, 1, 0, 0x10, 1, 0}) },
		"no headers":                             func(c *client) { _, _ = c.Write([]byte{0x80, 3, 0, 1, 0, 0, 1, 0}); _, _ = c.Write(make([]byte, 256)) },
		"many headers":                           func(c *client) { c.open(5, "stdin", strings.Fields(strings.Repeat("x ", 40))...) },
		"a large header":                         func(c *client) { c.open(5, strings.Repeat("x", 2000)) },
	} {
		c := newClient(t)
		c.open(1, errorType)
		c.open(3, "stdin")
		good := c.Len()
		send(c)
		c.write(&spdy.PingFrame{Id: 1})
		got, err := io.ReadAll(NewGuard(&c.Buffer, Limits{Streams: 2}))
		t.Logf("%s: %v", what, err)
		if err == nil || len(got) > good+headerSize {
			t.Errorf("%s: %d of %d bytes came out, %v", what, len(got), good, err)
		}
	}
	c := newClient(t)
	for id := spdy.StreamId(1); id < 6; id += 2 {
		c.open(id, "data")
	}
	if _, err := io.ReadAll(NewGuard(&c.Buffer, Limits{Open: 2})); err == nil || !strings.Contains(err.Error(), "at a time") {
		t.Errorf("three streams at a time: %v", err)
	}
}

// TestGuardPairs: data of a forwarded connection comes after a stream for its errors, and once.
func TestGuardPairs(t *testing.T) {
	pair := func(c *client, id spdy.StreamId, kind, of string) {
		c.write(&spdy.SynStreamFrame{StreamId: id, Headers: http.Header{"Streamtype": {kind}, "Requestid": {of}}})
	}
	for what, x := range map[string]struct {
		send func(*client)
		good bool
	}{
		"a pair": {func(c *client) { pair(c, 1, "error", "7"); pair(c, 3, "data", "7") }, true},
		"two pairs": {func(c *client) {
			pair(c, 1, "error", "7")
			pair(c, 3, "error", "8")
			pair(c, 5, "data", "8")
			pair(c, 7, "data", "7")
		}, true},
		"without a name": {func(c *client) { pair(c, 1, "error", ""); pair(c, 3, "data", "") }, true},
		"data alone":     {func(c *client) { pair(c, 1, "data", "7") }, false},
		"data first":     {func(c *client) { pair(c, 1, "data", "7"); pair(c, 3, "error", "7") }, false},
		"another's":      {func(c *client) { pair(c, 1, "error", "7"); pair(c, 3, "data", "8") }, false},
		"data twice":     {func(c *client) { pair(c, 1, "error", "7"); pair(c, 3, "data", "7"); pair(c, 5, "data", "7") }, false},
		"many alone": {func(c *client) {
			for id := range spdy.StreamId(9) {
				pair(c, 2*id+1, "error", fmt.Sprint(id))
				c.say(2*id+1, spdy.DataFlagFin, "")
			}
		}, false},
		"errors twice": {func(c *client) { pair(c, 1, "error", "7"); pair(c, 3, "error", "7") }, false},
	} {
		c := newClient(t)
		x.send(c)
		if _, err := io.ReadAll(NewGuard(&c.Buffer, Limits{Open: 6, Pair: time.Hour})); (err == nil) != x.good {
			t.Errorf("%s: %v", what, err)
		}
	}
	// The client is late, or the reader.
	for late, good := range map[string]bool{"client": false, "reader": true} {
		synctest.Test(t, func(t *testing.T) {
			c := newClient(t)
			pair(c, 1, "error", "7")
			first := bytes.Clone(c.Bytes())
			c.Reset()
			pair(c, 3, "data", "7")
			g := NewGuard(io.MultiReader(bytes.NewReader(first), readerFunc(func(p []byte) (int, error) {
				if late == "client" {
					time.Sleep(2 * time.Second) // the bubble's clock
				}
				return c.Read(p)
			})), Limits{Pair: time.Second})
			if n, err := g.Read(make([]byte, 1<<10)); n != len(first) || err != nil {
				t.Fatal(n, err)
			}
			time.Sleep(2 * time.Second) // the bubble's clock
			if _, err := io.ReadAll(g); (err == nil) != good {
				t.Errorf("the %s is late: %v", late, err)
			}
		})
	}
}

type readerFunc func(p []byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// Streams that only their client has ended count, for the library keeps them.
func TestGuardCountsHalves(t *testing.T) {
	for what, end := range map[string]func(server *client, id spdy.StreamId){
		"nobody": func(*client, spdy.StreamId) {},
		"reset":  func(s *client, id spdy.StreamId) { s.write(&spdy.RstStreamFrame{StreamId: id, Status: spdy.Cancel}) },
		"data":   func(s *client, id spdy.StreamId) { s.say(id, spdy.DataFlagFin, "x") },
		"answer": func(s *client, id spdy.StreamId) {
			s.write(&spdy.SynReplyFrame{StreamId: id, CFHeader: spdy.ControlFrameHeader{Flags: spdy.ControlFlagFin}})
		},
		"answers": func(s *client, id spdy.StreamId) { s.write(&spdy.SynReplyFrame{StreamId: id}) },
	} {
		for name, begin := range map[string]func(c *client, id spdy.StreamId){
			"at once": func(c *client, id spdy.StreamId) {
				c.write(&spdy.SynStreamFrame{StreamId: id, CFHeader: spdy.ControlFrameHeader{Flags: spdy.ControlFlagFin}})
			},
			"later": func(c *client, id spdy.StreamId) { c.open(id, "data"); c.say(id, spdy.DataFlagFin, "") },
		} {
			c, server := newClient(t), newClient(t)
			g := NewGuard(&c.Buffer, Limits{Open: 4})
			var err error
			for id := spdy.StreamId(1); id < 100 && err == nil; id += 2 {
				begin(c, id)
				for err == nil && c.Len() > 0 {
					_, err = g.Read(make([]byte, 1<<10))
				}
				end(server, id)
				g.Written(server.Next(server.Len()))
			}
			if good := what != "nobody" && what != "answers"; (err == nil) != good {
				t.Errorf("ended by its client %s, and by the server with %s: %v", name, what, err)
			}
		}
	}
}

// TestGuardForgets: streams that the server has reset are no streams of the client, though it sends
// no end of theirs; and what it sends on a stream after its end is left out.
func TestGuardForgets(t *testing.T) {
	c, server := newClient(t), newClient(t)
	from, to := io.Pipe()
	g := NewGuard(from, Limits{Open: 2})
	type result struct {
		got []byte
		err error
	}
	passed := make(chan result, 1)
	go func() {
		got, err := io.ReadAll(g)
		_ = from.CloseWithError(err)
		passed <- result{got, err}
	}()
	send := func() {
		t.Helper()
		if _, err := c.WriteTo(to); err != nil {
			t.Fatal(err)
		}
	}
	for id := spdy.StreamId(1); id < 100; id += 2 {
		c.open(id, "data")
		send()
		server.write(&spdy.RstStreamFrame{StreamId: id, Status: spdy.Cancel})
		g.Written(server.Next(server.Len()))
		c.say(id, 0, "x") // it has not heard of it
		send()
	}
	c.open(101, "data")
	c.say(101, spdy.DataFlagFin, "the end")
	c.say(101, 0, "more")
	c.open(103, "data")
	c.write(&spdy.RstStreamFrame{StreamId: 103, Status: spdy.Cancel})
	c.say(103, 0, "more")
	c.say(105, 0, "nowhere")
	send()
	_ = to.Close()
	end := <-passed
	data := dataOf(t, end.got)
	if end.err != nil || string(data[101]) != "the end" || len(data[103])+len(data[105]) > 0 || len(g.open) > 2 {
		t.Errorf("%q, %v; %d streams are open", data[101], end.err, len(g.open))
	}
}

// FuzzGuard: what comes out of a guard comes out of another one as it is, whatever went in and in
// whatever pieces.
func FuzzGuard(f *testing.F) {
	t := &testing.T{}
	c := newClient(t)
	c.open(1, errorType)
	c.open(3, "stdin")
	c.say(3, 0, "hello")
	f.Add(c.Bytes(), uint8(3))
	f.Add([]byte{0x80, 3, 0, 1, 0, 0, 0, 10, 1}, uint8(1))
	f.Fuzz(func(t *testing.T, b []byte, size uint8) {
		first, err := io.ReadAll(NewGuard(&pieces{b, int(size) + 1}, Limits{Open: 3}))
		again, aerr := io.ReadAll(NewGuard(bytes.NewReader(first), Limits{Open: 3}))
		if aerr != nil || !bytes.Equal(again, first) {
			t.Fatalf("%q came out as %q (%v) and then as %q (%v)", b, first, err, again, aerr)
		}
		// The library reads as many control frames as the guard, and data of the same streams.
		var ours, theirs []string
		for f, rest := new(Frames), first; len(rest) > 0; {
			var body, control []byte
			if body, control, rest, err = f.Next(rest); err != nil {
				t.Fatal(err)
			}
			if control != nil {
				ours = append(ours, fmt.Sprintf("%x", control[:4]))
			} else if body != nil {
				ours = append(ours, fmt.Sprint(f.Stream(), len(body)))
			}
		}
		framer, err := spdy.NewFramer(io.Discard, bytes.NewReader(first))
		if err != nil {
			t.Fatal(err)
		}
		for {
			frame, err := framer.ReadFrame()
			if err != nil {
				break
			}
			if d, ok := frame.(*spdy.DataFrame); ok {
				theirs = append(theirs, fmt.Sprint(d.StreamId, len(d.Data)))
			} else {
				theirs = append(theirs, "control")
			}
		}
		for i := range ours {
			if i >= len(theirs) || theirs[i] != ours[i] && theirs[i] != "control" {
				t.Fatalf("the library reads %q, and the guard %q", theirs, ours)
			}
		}
	})
}

// pieces is read in pieces of a size.
type pieces struct {
	b    []byte
	size int
}

func (p *pieces) Read(to []byte) (int, error) {
	if len(p.b) == 0 {
		return 0, io.EOF
	}
	n := copy(to, p.b[:min(len(p.b), p.size)])
	p.b = p.b[n:]
	return n, nil
}
