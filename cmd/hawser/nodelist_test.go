package main

import (
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// TestNodeListIsNotCurrent: after the API server was away, an address may be that of a node that the
// hub does not know yet. The error says so, until the list is another one.
func TestNodeListIsNotCurrent(t *testing.T) {
	const stale = "list of nodes is not current, as it could not be read at 2026-01-02T03:04:05Z"
	version, began := "7", time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	l := &nodeList{version: func() string { return version }}
	none := &tunnel.DialError{Addr: "10.0.0.1:80", Code: tunnel.NoNode, Text: "no node has address 10.0.0.1"}
	told := func(addr string, err error) bool {
		got := l.explain(addr, err)
		if !strings.HasPrefix(got.Error(), err.Error()) || tunnel.CodeOf(got) != tunnel.CodeOf(err) {
			t.Errorf("%v has become %v", err, got)
		}
		return strings.Contains(got.Error(), stale)
	}
	l.failed(io.EOF, began)
	if told("10.0.0.1:80", none) {
		t.Error("a watch that ends makes no list old")
	}
	l.failed(errors.New("connection refused"), began)
	l.failed(errors.New("connection refused"), began.Add(time.Minute))
	for addr, want := range map[string]bool{"10.0.0.1:80": true, "[2001:db8::1]:80": true, "node-1:80": false, "10.0.0.1%node-1:80": false} {
		if told(addr, none) != want {
			t.Errorf("%s: told %t", addr, !want)
		}
	}
	if told("10.0.0.1:80", &tunnel.DialError{Addr: "10.0.0.1:80", Code: tunnel.Refused}) {
		t.Error("another error is explained by it")
	}
	if version = "8"; told("10.0.0.1:80", none) {
		t.Error("the list has been read since")
	}
}
