package auth

import (
	"encoding/pem"
	"testing"
)

// Every bundle of authorities gives certificates or an error.
func FuzzParseCertificates(f *testing.F) {
	f.Add([]byte("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----"))
	f.Add(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte{0x30, 0x84, 0xff, 0xff, 0xff, 0xff}}))
	f.Add([]byte("hello"))
	f.Fuzz(func(t *testing.T, in []byte) {
		list, err := ParseCertificates(in)
		if (err == nil) != (len(list) > 0) {
			t.Errorf("%d certificates, %v", len(list), err)
		}
		for _, c := range list {
			if c == nil || len(c.Raw) == 0 {
				t.Error("a certificate that is none")
			}
		}
	})
}
