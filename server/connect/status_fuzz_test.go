package connect

import (
	"errors"
	"testing"

	"github.com/hawser-project/hawser/tunnel"
)

// Every error text of an agent stays within its header field.
func FuzzProxyStatus(f *testing.F) {
	f.Add(uint8(1), "connection refused")
	f.Add(uint8(255), "a\"\\\r\nX-Evil: 1\r\n\r\nü\xff\x00")
	f.Fuzz(func(t *testing.T, code uint8, text string) {
		field := proxyStatus(tunnel.Code(code), errors.New(text))
		const most = 2*maxTargetText + 100
		if len(field) > most {
			t.Errorf("%d bytes", len(field))
		}
		for _, line := range []string{field, printable(text)} {
			for _, b := range []byte(line) {
				if b < ' ' || b > '~' {
					t.Errorf("%q", line)
				}
			}
		}
		if s := httpStatus(tunnel.Code(code)); s < 400 || s > 599 {
			t.Errorf("status %d", s)
		}
	})
}
