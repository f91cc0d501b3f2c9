package kubeauth

// Requests for certificates as nodes may write them.

import "testing"

func FuzzRequest(f *testing.F) {
	f.Add([]byte("-----BEGIN CERTIFICATE REQUEST-----\n-----END CERTIFICATE REQUEST-----"))
	f.Add([]byte("-----BEGIN CERTIFICATE REQUEST-----\nMIT/////\n-----END CERTIFICATE REQUEST-----"))
	f.Add([]byte("hello"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if r, err := parseRequest(text); (r == nil) != (err != nil) {
			t.Errorf("%v, %v", r, err)
		}
	})
}
