package agent

import (
	"bytes"
	"testing"
)

// Only the header of a proxy's answer is read, and at most its bound.
func FuzzReadHeader(f *testing.F) {
	f.Add([]byte("HTTP/1.1 200 OK\r\n\r\nmore"))
	f.Add([]byte("HTTP/1.1 407 No\nA: b\n\nmore"))
	f.Add(make([]byte, maxProxyAnswer+1))
	f.Fuzz(func(t *testing.T, in []byte) {
		r := bytes.NewReader(in)
		header, err := readHeader(r)
		if read := len(in) - r.Len(); read > maxProxyAnswer {
			t.Errorf("%d bytes were read", read)
		} else if err == nil && (read != len(header) || !bytes.HasPrefix(in, header)) {
			t.Errorf("%d bytes were read, of which %d are header", read, len(header))
		}
	})
}
