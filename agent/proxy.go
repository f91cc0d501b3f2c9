// Proxy: to a server through an HTTP proxy, by CONNECT (RFC 9110, 9.3.6).

package agent

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"
)

const (
	// proxyTimeout bounds the CONNECT exchange, during which the proxy connects to the
	// server.
	proxyTimeout = 10 * time.Second
	// maxProxyAnswer bounds the header of a proxy's answer in bytes.
	maxProxyAnswer = 16 << 10
	// maxInterim bounds the interim responses before that (RFC 9110, 15.2).
	maxInterim = 5
)

// CheckProxy reports whether an agent can use the proxy u. The error says what it supports.
func CheckProxy(u *url.URL) error {
	if u.Scheme != "http" && u.Scheme != "https" {
		return fmt.Errorf("proxy %s: scheme %q is not supported: want http://HOST:PORT or https://HOST:PORT", u.Redacted(), u.Scheme)
	}
	if u.Hostname() == "" {
		return fmt.Errorf("proxy %s: no host: want http://HOST:PORT", u.Redacted())
	}
	return nil
}

// proxyAddr is where a proxy listens.
func proxyAddr(via *url.URL) string {
	switch {
	case via.Port() != "":
		return net.JoinHostPort(via.Hostname(), via.Port())
	case via.Scheme == "https":
		return hostPort(via.Hostname(), 443)
	default:
		return hostPort(via.Hostname(), 80)
	}
}

// dialProxy connects to addr through the proxy.
func (d *dialer) dialProxy(ctx context.Context, via *url.URL, addr string, one dialFunc) (net.Conn, error) {
	if err := CheckProxy(via); err != nil {
		return nil, err
	}
	raw, err := d.reach(ctx, "tcp", proxyAddr(via), one)
	if err != nil {
		return nil, fmt.Errorf("reach proxy %s: %w", via.Host, err)
	}
	began := time.Now()
	c, err := tunnelTo(ctx, raw.Conn, via, addr)
	if err != nil {
		if !errors.Is(ctx.Err(), context.Canceled) {
			d.reorder(proxyAddr(via), raw.RemoteAddr(), false)
		}
		_ = raw.Close() // the failure is the news
		return nil, fmt.Errorf("connect through proxy %s: %w", via.Host, err)
	}
	silence := fmt.Sprintf("proxy %s at %v accepts CONNECT %s, and then there is no answer", via.Host, raw.RemoteAddr(), addr)
	return d.await(ctx, raw, c, proxyAddr(via), unansweredError(silence), raw.took+time.Since(began)), nil
}

// tunnelTo has the proxy at the other end of raw connect to addr.
func tunnelTo(ctx context.Context, raw net.Conn, via *url.URL, addr string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, proxyTimeout)
	defer cancel()
	var err error
	c, began := raw, time.Now()
	// If ctx ends the connection is closed, which ends the TLS handshake and the exchange.
	stop := context.AfterFunc(ctx, func() { _ = raw.SetDeadline(time.Unix(1, 0)) })
	if via.Scheme == "https" {
		t := tls.Client(raw, &tls.Config{ServerName: via.Hostname(), MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}})
		err, c = proxyTLS(via, t.HandshakeContext(ctx)), t
	}
	if err == nil {
		if err = askProxy(c, via, addr); alerted(err) {
			err = proxyTLS(via, err) // with TLS 1.3 it may refuse after this end's handshake
		}
	}
	if stopped := stop(); !stopped && err != nil || err == nil && ctx.Err() != nil {
		err = silent(context.Cause(ctx), addr, time.Since(began))
	}
	return c, err
}

// askProxy sends the request and reads the answer. Of what follows it, the
// tunnel's bytes, it reads none.
func askProxy(c net.Conn, via *url.URL, addr string) error {
	var auth string
	if u := via.User; u != nil {
		password, _ := u.Password()
		auth = "Proxy-Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(u.Username()+":"+password)) + "\r\n"
	}
	request := "CONNECT " + addr + " HTTP/1.1\r\nHost: " + addr + "\r\nUser-Agent: hawser-agent\r\n" + auth + "\r\n"
	if _, err := io.WriteString(c, request); err != nil {
		return fmt.Errorf("send CONNECT: %w", err)
	}
	for range maxInterim {
		header, err := readHeader(c)
		if err != nil {
			return err
		}
		// A body is read if the tunnel is refused.
		resp, err := http.ReadResponse(bufio.NewReader(io.MultiReader(bytes.NewReader(header), c)), &http.Request{Method: http.MethodConnect})
		if err != nil {
			return fmt.Errorf("what answers is no HTTP proxy: %w", err)
		}
		switch {
		case resp.StatusCode/100 == 2:
			return nil
		case resp.StatusCode/100 != 1 || resp.StatusCode == http.StatusSwitchingProtocols:
			e := &proxyError{proxy: via.Host, server: addr, status: resp.StatusCode, text: resp.Status, sent: auth != "", schemes: schemesOf(resp.Header)}
			if resp.StatusCode >= 400 && resp.StatusCode != http.StatusProxyAuthRequired {
				_ = c.SetReadDeadline(time.Now().Add(proxyBodyTimeout)) // the connection is not used again
				e.says = firstLine(resp.Body)
			}
			return e
		}
	}
	return fmt.Errorf("proxy sends more than %d interim responses", maxInterim)
}

// readHeader reads up to and including the empty line that ends an HTTP header,
// one byte at a time, since what follows is not ours to keep.
func readHeader(r io.Reader) ([]byte, error) {
	header := make([]byte, 0, 512)
	one := make([]byte, 1)
	for !bytes.HasSuffix(header, []byte("\r\n\r\n")) && !bytes.HasSuffix(header, []byte("\n\n")) {
		if len(header) == maxProxyAnswer {
			return nil, fmt.Errorf("answer's header is longer than %d bytes", maxProxyAnswer)
		}
		if _, err := io.ReadFull(r, one); err != nil {
			if errors.Is(err, io.EOF) {
				return nil, errors.New("proxy hung up without an answer")
			}
			return nil, fmt.Errorf("read answer: %w", err)
		}
		header = append(header, one[0])
	}
	return header, nil
}
