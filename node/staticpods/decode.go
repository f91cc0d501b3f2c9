// From a file's content to a pod.

package staticpods

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	serializer "k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/hawser-project/hawser/auth/apiclient"
)

// Annotations of a static pod, which the API knows by these names.
const (
	HashAnnotation   = "kubernetes.io/config.hash"
	seenAnnotation   = "kubernetes.io/config.seen"
	sourceAnnotation = "kubernetes.io/config.source"
)

// decoder reads YAML and JSON. Of unknown fields it tells in an error, with the object.
var decoder = serializer.NewSerializerWithOptions(serializer.DefaultMetaFactory, apiclient.Scheme, apiclient.Scheme,
	serializer.SerializerOptions{Yaml: true, Strict: true})

// decode makes a pod of a file's content; unknown is told of fields that are unknown or deprecated.
func decode(data []byte, path, node string, unknown func(path, what string)) (*corev1.Pod, error) {
	one, err := document(data)
	if err != nil {
		return nil, err
	}
	obj, _, err := decoder.Decode(one, nil, nil)
	if err != nil && obj != nil && runtime.IsStrictDecodingError(err) {
		unknown(path, plain(err))
		err = nil
	}
	if err != nil {
		return nil, fmt.Errorf("is no v1 Pod: %s", plain(err))
	}
	written, ok := obj.(*corev1.Pod)
	if !ok {
		return nil, fmt.Errorf("is no v1 Pod but %s", obj.GetObjectKind().GroupVersionKind())
	}
	pod, err := own(written, path, node)
	if err != nil {
		return nil, err
	}
	for _, what := range apiclient.CopyAppArmor(pod) {
		unknown(path, what)
	}
	defaults(&pod.Spec)
	if err := check(pod); err != nil {
		return nil, err
	}
	pod.Status = corev1.PodStatus{Phase: corev1.PodPending, QOSClass: qosClass(&pod.Spec)}
	return pod, nil
}

// maxText bounds what is said of what is wrong, in bytes.
const maxText = 512

// plain is one line that says what is wrong, without what the file has: that may be
// secret.
func plain(err error) string {
	switch {
	case runtime.IsMissingKind(err):
		return "kind is missing"
	case runtime.IsMissingVersion(err):
		return "apiVersion is missing"
	}
	text := strings.Join(strings.Fields(err.Error()), " ")
	return text[:min(len(text), maxText)]
}

// document is the only one of the file.
func document(data []byte) ([]byte, error) {
	r := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
	var one []byte
	for {
		next, err := r.Read()
		switch {
		case errors.Is(err, io.EOF) && one == nil:
			return nil, errors.New("is empty: want one v1 Pod")
		case errors.Is(err, io.EOF):
			return one, nil
		case err != nil:
			return nil, fmt.Errorf("is no YAML: %w", err)
		case blank(next):
		case one != nil:
			return nil, errors.New("has more than one document: want one Pod a file")
		default:
			one = bytes.Clone(next)
		}
	}
}

// blank says whether a document has nothing but comments.
func blank(document []byte) bool {
	for line := range bytes.Lines(document) {
		if line = bytes.TrimSpace(line); len(line) > 0 && line[0] != '#' && string(line) != "---" {
			return false
		}
	}
	return true
}

// own makes of what is written the node's own pod. What only the API gives a pod, such
// as a uid, owners and finalizers, means nothing here.
func own(written *corev1.Pod, path, node string) (*corev1.Pod, error) {
	if written.Name == "" {
		return nil, errors.New("metadata.name is missing")
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: written.Name, Namespace: written.Namespace, Labels: written.Labels, Annotations: written.Annotations,
		},
		Spec: written.Spec,
	}
	uid, err := hash(pod, path, node)
	if err != nil {
		return nil, err
	}
	pod.UID, pod.Name, pod.Spec.NodeName = uid, pod.Name+"-"+strings.ToLower(node), node
	if pod.Namespace == "" {
		pod.Namespace = metav1.NamespaceDefault
	}
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	delete(pod.Annotations, corev1.MirrorPodAnnotationKey)
	pod.Annotations[HashAnnotation], pod.Annotations[sourceAnnotation] = string(uid), "file"
	everything := corev1.Toleration{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute}
	for i := range pod.Spec.Tolerations {
		if pod.Spec.Tolerations[i].MatchToleration(&everything) {
			pod.Spec.Tolerations[i] = everything // for ever, whatever it said
			return pod, nil
		}
	}
	pod.Spec.Tolerations = append(pod.Spec.Tolerations, everything)
	return pod, nil
}

// hash is the uid of a pod, the same each time the agent starts.
func hash(pod *corev1.Pod, path, node string) (types.UID, error) {
	content, err := json.Marshal(pod)
	if err != nil {
		return "", fmt.Errorf("cannot be told from others: %w", err)
	}
	if len(content) > maxPod {
		return "", fmt.Errorf("has a pod of %d bytes: want %d at most", len(content), maxPod)
	}
	h := sha256.New()
	_, _ = h.Write(content) // never fails
	_, _ = fmt.Fprintf(h, "\x00host:%s\x00file:%s", node, path)
	return types.UID(hex.EncodeToString(h.Sum(nil)[:16])), nil
}
