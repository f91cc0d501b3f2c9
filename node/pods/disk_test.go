package pods

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hawser-project/hawser/auth/atomicfile"
)

func TestCheckpoints(t *testing.T) {
	p := places{dir: t.TempDir()}
	if list, bad, err := p.loadCheckpoints(); err != nil || len(list) != 0 || len(bad) != 0 {
		t.Errorf("nothing: %v, %v, %v", list, bad, err)
	}
	pod := newPod("a", nil)
	if err := saveCheckpoint(p.checkpoint(pod.UID), checkpoint{Pod: pod, Admitted: true}); err != nil {
		t.Fatal(err)
	}
	good, err := os.ReadFile(p.checkpoint(pod.UID))
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(p.checkpoint(pod.UID)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v: others than the agent may read pods", info.Mode(), err)
	}
	files := map[string]string{
		"torn":    string(good[:len(good)-7]),
		"rotten":  strings.Replace(string(good), "busybox", "busyb0x", 1),
		"empty":   "",
		"nothing": "{}",
		"newer":   strings.Replace(string(good), `"version":1`, `"version":2`, 1),
		"moved":   string(good),
		"large":   strings.Repeat(" ", maxCheckpoint+1),
	}
	for name, text := range files {
		file := p.checkpoint(types.UID(name))
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	unfinished := filepath.Join(p.pod(pod.UID), atomicfile.TempPrefix+"123")
	if err := os.WriteFile(unfinished, good[:9], 0o600); err != nil {
		t.Fatal(err)
	}
	list, bad, err := p.loadCheckpoints()
	if err != nil || len(list) != 1 || !list[0].Admitted || list[0].Pod.Name != "a" {
		t.Errorf("checkpoints %+v, %v", list, err)
	}
	set := map[string]error{}
	for _, d := range bad {
		set[d.path] = d.err
	}
	for name := range files {
		aside := p.checkpoint(types.UID(name)) + ".damaged"
		if set[aside] == nil {
			t.Errorf("%s is not told of among %v", aside, slices.Collect(maps.Keys(set)))
		}
		if data, err := os.ReadFile(aside); err != nil || string(data) != files[name] {
			t.Errorf("%s was not set aside as it was: %v", name, err)
		}
	}
	if _, err := os.Stat(unfinished); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a write cut short is left behind: %v", err)
	}
	if list, bad, err := p.loadCheckpoints(); len(list) != 1 || len(bad) != 0 || err != nil {
		t.Errorf("the next start finds %d checkpoints, %v, %v", len(list), bad, err)
	}
}

func TestInputsOnDisk(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pod", inputsName)
	if list, err := loadInputs(path); err != nil || list != nil {
		t.Errorf("no file: %v, %v", list, err)
	}
	in := newInputs(nil, path, nil)
	if err := in.save(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a pod without inputs has a file: %v", err)
	}
	in.note(configMapKey("ns", "c"), input{ConfigMap: &corev1.ConfigMap{Data: map[string]string{"a": "b"}}}, nil)
	in.note(secretKey("ns", "s"), input{Secret: &corev1.Secret{Data: map[string][]byte{"x": {0, 255}}}}, nil)
	in.note(secretKey("ns", "none"), input{}, notFound(secretKey("ns", "none")))
	in.note(secretKey("ns", "unknown"), input{}, errors.New("no connection"))
	if err := in.save(); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v: others than the agent may read secrets", info.Mode(), err)
	}
	list, err := loadInputs(path)
	if err != nil || len(list) != 3 {
		t.Fatalf("read %d inputs, %v", len(list), err)
	}
	again := newInputs(nil, path, list)
	if got := again.kept[secretKey("ns", "s")].Secret; got == nil || !bytes.Equal(got.Data["x"], []byte{0, 255}) {
		t.Errorf("secret %+v", got)
	}
	if got, ok := again.kept[secretKey("ns", "none")]; !ok || got.value() != nil {
		t.Errorf("that there is no such secret was forgotten: %+v", got)
	}
	again.note(configMapKey("ns", "c"), input{ConfigMap: &corev1.ConfigMap{Data: map[string]string{"a": "b"}}}, nil)
	if again.dirty {
		t.Error("what has not changed is to be written")
	}
	for i := range maxInputCount {
		again.note(configMapKey("ns", fmt.Sprint(i)), input{}, notFound(configMapKey("ns", "")))
	}
	if err := again.save(); err == nil {
		t.Error("any number of objects is kept")
	}
}

func FuzzCheckpoint(f *testing.F) {
	for _, c := range []checkpoint{{Pod: newPod("a", nil), Admitted: true}, {Pod: newPod("a", nil), Gone: true}, {}} {
		data, err := encodeRecord(c)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add(sealed(`{"pod":{"metadata":{"name":"a","namespace":"b","uid":"../c"}}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := decodeCheckpoint(data)
		if err != nil {
			return
		}
		if dir := (places{dir: "/x"}).pod(c.Pod.UID); !strings.HasPrefix(dir, "/x/pods/") {
			t.Errorf("a checkpoint's pod is in %s", dir)
		}
	})
}

func FuzzInputs(f *testing.F) {
	f.Add(`[{"kind":"secret","namespace":"a","name":"b","secret":{"data":{"k":"AAE="}}}]`)
	f.Add(`[{"kind":"token","namespace":"a","name":"b","more":"uid//3600","token":"t"}]`)
	f.Add(`[{"kind":"token"},{"kind":"secret","token":"t"},{}]`)
	f.Fuzz(func(t *testing.T, data string) {
		list, err := decodeInputs(sealed(data))
		if err != nil {
			return
		}
		for i := range list {
			// What the cache hands out is of the type that its kind promises.
			switch v := list[i].value().(type) {
			case nil:
			case *corev1.ConfigMap:
				if list[i].Kind != "configmap" {
					t.Errorf("%+v", list[i])
				}
			case *corev1.Secret:
				if list[i].Kind != "secret" {
					t.Errorf("%+v", list[i])
				}
			case string:
				if list[i].Kind != "token" || v == "" {
					t.Errorf("%+v", list[i])
				}
			}
		}
	})
}

// sealed is a record of that data.
func sealed(data string) []byte {
	return fmt.Appendf(nil, `{"version":%d,"checksum":%q,"data":%s}`, recordVersion, checksum([]byte(data)), data)
}
