// This file keeps on disk what containers are made from, so that they can be made
// again without a server.

package pods

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

const (
	// maxInputs bounds the inputs of one pod on disk, in bytes. Of a pod with more,
	// none are kept.
	maxInputs = 16 << 20
	// maxInputCount bounds their number.
	maxInputCount = 4096
)

// An input is an object that a pod refers to, as last read: its content alone. One
// of ConfigMap, Secret and Token is set, or none if there was no such object.
type input struct {
	Kind      string            `json:"kind"`
	Namespace string            `json:"namespace"`
	Name      string            `json:"name"`
	More      string            `json:"more,omitempty"`
	ConfigMap *corev1.ConfigMap `json:"configMap,omitempty"`
	Secret    *corev1.Secret    `json:"secret,omitempty"`
	Token     string            `json:"token,omitempty"`
}

func (in *input) key() objectKey {
	return objectKey{kind: in.Kind, namespace: in.Namespace, name: in.Name, more: in.More}
}

// value is what the cache has for the input.
func (in *input) value() any {
	switch {
	case in.ConfigMap != nil:
		return in.ConfigMap
	case in.Secret != nil:
		return in.Secret
	case in.Token != "":
		return in.Token
	}
	return nil
}

// valid reports whether the input has the content that its kind requires.
func (in *input) valid() bool {
	switch in.Kind {
	case "configmap":
		return in.Secret == nil && in.Token == ""
	case "secret":
		return in.ConfigMap == nil && in.Token == ""
	case "token":
		return in.ConfigMap == nil && in.Secret == nil && in.Token != ""
	}
	return false
}

// inputs reads objects for one pod and keeps their content in a file. Only the agent's
// user may read the file, as with the volumes of the same content. All methods may be
// called at the same time.
type inputs struct {
	objects *objects
	path    string
	made    time.Time

	mu    sync.Mutex
	kept  map[objectKey]input
	dirty bool // the file lacks something that was read
}

func newInputs(o *objects, path string, kept []input) *inputs {
	in := &inputs{objects: o, path: path, made: time.Now(), kept: map[objectKey]input{}}
	for i := range kept {
		in.kept[kept[i].key()] = kept[i]
	}
	return in
}

// ConfigMap implements volumes.Objects.
func (in *inputs) ConfigMap(ctx context.Context, namespace, name string) (*corev1.ConfigMap, error) {
	key := configMapKey(namespace, name)
	cm, err := in.objects.ConfigMap(ctx, namespace, name, in.own(key), in.made)
	var content input
	if err == nil {
		content.ConfigMap = &corev1.ConfigMap{Data: cm.Data, BinaryData: cm.BinaryData}
	}
	in.note(key, content, err)
	return cm, err
}

// Secret implements volumes.Objects.
func (in *inputs) Secret(ctx context.Context, namespace, name string) (*corev1.Secret, error) {
	key := secretKey(namespace, name)
	s, err := in.objects.Secret(ctx, namespace, name, in.own(key), in.made)
	var content input
	if err == nil {
		content.Secret = &corev1.Secret{Data: s.Data}
	}
	in.note(key, content, err)
	return s, err
}

// Token implements volumes.Objects.
func (in *inputs) Token(ctx context.Context, pod *corev1.Pod, p *corev1.ServiceAccountTokenProjection) (string, error) {
	key := tokenKey(pod, p)
	token, err := in.objects.Token(ctx, pod, p, in.own(key))
	if err == nil {
		in.note(key, input{Token: token}, nil)
	}
	return token, err
}

// own returns the pod's own copy of an object; nil for none.
func (in *inputs) own(key objectKey) *input {
	in.mu.Lock()
	defer in.mu.Unlock()
	if content, ok := in.kept[key]; ok {
		return &content
	}
	return nil
}

// note stores what was read, or that the object does not exist.
func (in *inputs) note(key objectKey, content input, err error) {
	if err != nil && !apierrors.IsNotFound(err) {
		return
	}
	content.Kind, content.Namespace, content.Name, content.More = key.kind, key.namespace, key.name, key.more
	in.mu.Lock()
	defer in.mu.Unlock()
	older, ok := in.kept[key]
	if !ok || !apiequality.Semantic.DeepEqual(older, content) {
		in.kept[key], in.dirty = content, true
	}
}

// save brings the file up to date.
func (in *inputs) save() error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if !in.dirty {
		return nil
	}
	list := make([]input, 0, len(in.kept))
	for _, content := range in.kept {
		list = append(list, content)
	}
	data, err := encodeRecord(list)
	if err != nil {
		return fmt.Errorf("keep inputs: %w", err)
	}
	if len(data) > maxInputs || len(list) > maxInputCount {
		return fmt.Errorf("keep inputs: %d bytes of %d objects are too many", len(data), len(list))
	}
	if err = os.MkdirAll(filepath.Dir(in.path), 0o755); err != nil {
		return fmt.Errorf("keep inputs: %w", err)
	}
	if err = replaceFile(in.path, data); err != nil {
		return fmt.Errorf("keep inputs: %w", err)
	}
	in.dirty = false
	return nil
}

// loadInputs reads a file of save. If it does not exist there are no inputs.
func loadInputs(path string) ([]input, error) {
	data, err := readFile(path, maxInputs)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read inputs: %w", err)
	}
	return decodeInputs(data)
}

func decodeInputs(data []byte) ([]input, error) {
	var list []input
	if err := decodeRecord(data, &list); err != nil {
		return nil, fmt.Errorf("read inputs: %w", err)
	}
	if len(list) > maxInputCount {
		return nil, fmt.Errorf("read inputs: %d objects are too many", len(list))
	}
	for i := range list {
		if !list[i].valid() {
			return nil, fmt.Errorf("read inputs: %s %s/%s is not what it says", list[i].Kind, list[i].Namespace, list[i].Name)
		}
	}
	return list, nil
}
