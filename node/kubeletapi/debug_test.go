package kubeletapi

// Profiles and settings.

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/component-base/configz"
)

func TestProfiles(t *testing.T) {
	g := newRig(t)
	if code, body := g.get("/debug/pprof/goroutine?debug=1"); code != 200 || !strings.Contains(body, "TestProfiles") {
		t.Errorf("goroutines: %d, %.100q", code, body)
	}
	for _, path := range []string{"/debug/pprof/heap", "/debug/pprof/heap?debug=-1", "/debug/pprof/profile?seconds=1"} {
		code, body := g.get(path)
		zip, err := gzip.NewReader(strings.NewReader(body))
		if code != 200 || err != nil {
			t.Fatalf("%s: %d, %v", path, code, err)
		}
		if all, err := io.ReadAll(zip); err != nil || !bytes.Contains(all, []byte("kubeletapi")) {
			t.Errorf("%s: %d bytes, %v", path, len(all), err)
		}
	}
	if code, body := g.get("/debug/pprof/none"); code != 404 || !strings.Contains(body, `"none"`) {
		t.Errorf("no such profile: %d, %q", code, body)
	}
}

func TestConfigz(t *testing.T) {
	c, err := configz.New("test")
	if err != nil {
		t.Fatal(err)
	}
	defer configz.Delete("test")
	if err := c.Set(&unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Test", "a": "b"}}); err != nil {
		t.Fatal(err)
	}
	g := newRig(t)
	code, body := g.get("/configz")
	var all map[string]map[string]any
	if err := json.Unmarshal([]byte(body), &all); code != 200 || err != nil || all["test"]["a"] != "b" {
		t.Errorf("%d, %q, %v", code, body, err)
	}
}
