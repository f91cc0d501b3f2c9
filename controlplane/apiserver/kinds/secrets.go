// The kind Secret.

package kinds

import (
	"crypto/tls"
	"encoding/json"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
)

func secrets() Kind {
	return of[corev1.Secret, corev1.SecretList](corev1.SchemeGroupVersion, "Secret", "secrets", "secret", Kind{
		fields: selecting(secretFields), indexed: "metadata.name",
		rules:    Rules{Create: create(validateSecret), Update: update(validateSecretUpdate)},
		warnings: warningOf(secretWarnings),
		defaults: defaulting(defaultSecret),
		table:    secretTable,
	})
}

// secretWarnings warns of a certificate that does not go with its key.
func secretWarnings(w *warnings, s, _ *corev1.Secret) {
	if s.Type != corev1.SecretTypeTLS {
		return
	}
	if _, err := tls.X509KeyPair(s.Data[corev1.TLSCertKey], s.Data[corev1.TLSPrivateKeyKey]); err != nil {
		w.add("%v", err)
	}
}

func secretFields(s *corev1.Secret) fields.Set { return fields.Set{"type": string(s.Type)} }

// defaultSecret moves stringData, which is only a convenience for writing, into data.
func defaultSecret(o *corev1.Secret) {
	set(&o.Type, corev1.SecretTypeOpaque)
	if len(o.StringData) > 0 && o.Data == nil {
		o.Data = make(map[string][]byte, len(o.StringData))
	}
	for k, v := range o.StringData {
		o.Data[k] = []byte(v)
	}
	o.StringData = nil
}

// validateSecret checks a secret's keys and size, and that a secret of a
// well-known type has the keys of that type.
func validateSecret(s *corev1.Secret) field.ErrorList {
	p := field.NewPath("data")
	var errs field.ErrorList
	size := 0
	for _, k := range slices.Sorted(maps.Keys(s.Data)) {
		errs = append(errs, messages(p.Key(k), k, validation.IsConfigMapKey(k))...)
		size += len(s.Data[k])
	}
	if size > corev1.MaxSecretSize {
		errs = append(errs, field.TooLong(p, "", corev1.MaxSecretSize))
	}
	need := func(keys ...string) {
		for _, k := range keys {
			if _, ok := s.Data[k]; !ok {
				errs = append(errs, field.Required(p.Key(k), ""))
			}
		}
	}
	switch s.Type {
	case corev1.SecretTypeServiceAccountToken:
		if s.Annotations[corev1.ServiceAccountNameKey] == "" {
			errs = append(errs, field.Required(field.NewPath("metadata", "annotations").Key(corev1.ServiceAccountNameKey), ""))
		}
	case corev1.SecretTypeDockercfg:
		errs = append(errs, jsonKey(s, corev1.DockerConfigKey, p)...)
	case corev1.SecretTypeDockerConfigJson:
		errs = append(errs, jsonKey(s, corev1.DockerConfigJsonKey, p)...)
	case corev1.SecretTypeBasicAuth:
		_, user := s.Data[corev1.BasicAuthUsernameKey]
		_, password := s.Data[corev1.BasicAuthPasswordKey]
		if !user && !password {
			need(corev1.BasicAuthUsernameKey, corev1.BasicAuthPasswordKey)
		}
	case corev1.SecretTypeSSHAuth:
		if len(s.Data[corev1.SSHAuthPrivateKey]) == 0 {
			errs = append(errs, field.Required(p.Key(corev1.SSHAuthPrivateKey), ""))
		}
	case corev1.SecretTypeTLS:
		need(corev1.TLSCertKey, corev1.TLSPrivateKeyKey)
	}
	return errs
}

// jsonKey wants a key that holds JSON. The message must not show the value.
func jsonKey(s *corev1.Secret, key string, p *field.Path) field.ErrorList {
	data, ok := s.Data[key]
	if !ok {
		return field.ErrorList{field.Required(p.Key(key), "")}
	}
	if !json.Valid(data) {
		return field.ErrorList{field.Invalid(p.Key(key), "<secret contents redacted>", "must be valid JSON")}
	}
	return nil
}

// validateSecretUpdate checks a change of a secret: its type stays, and with
// immutable set so does all it holds.
func validateSecretUpdate(s, old *corev1.Secret) field.ErrorList {
	errs := immutable(s.Type, old.Type, field.NewPath("type"))
	if deref(old.Immutable) {
		if !deref(s.Immutable) {
			errs = append(errs, field.Forbidden(field.NewPath("immutable"), immutableData))
		}
		if !equal(s.Data, old.Data) {
			errs = append(errs, field.Forbidden(field.NewPath("data"), immutableData))
		}
	}
	return append(errs, validateSecret(s)...)
}

func secretTable(gr schema.GroupResource) rest.TableConvertor {
	doc := corev1.Secret{}.SwaggerDoc()
	return newTable(gr, columns{nameColumn(), text("Type", doc["type"]), text("Data", doc["data"]), ageColumn()},
		func(o *corev1.Secret, now time.Time) []any {
			return []any{o.Name, string(o.Type), int64(len(o.Data)), age(o.CreationTimestamp, now)}
		})
}
