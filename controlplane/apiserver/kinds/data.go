// Rules for secrets, config maps and service accounts.

package kinds

import (
	"encoding/json"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const immutableData = "field is immutable when `immutable` is set"

// ValidateSecret checks a secret's keys and size, and that a secret of a
// well-known type has the keys of that type.
func ValidateSecret(s *corev1.Secret) field.ErrorList {
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

// ValidateSecretUpdate checks a change of a secret: its type stays, and with
// immutable set so does all it holds.
func ValidateSecretUpdate(s, old *corev1.Secret) field.ErrorList {
	errs := immutable(s.Type, old.Type, field.NewPath("type"))
	if deref(old.Immutable) {
		if !deref(s.Immutable) {
			errs = append(errs, field.Forbidden(field.NewPath("immutable"), immutableData))
		}
		if !equal(s.Data, old.Data) {
			errs = append(errs, field.Forbidden(field.NewPath("data"), immutableData))
		}
	}
	return append(errs, ValidateSecret(s)...)
}

// ValidateConfigMap checks a config map's keys and size.
func ValidateConfigMap(c *corev1.ConfigMap) field.ErrorList {
	var errs field.ErrorList
	size := 0
	for _, k := range slices.Sorted(maps.Keys(c.Data)) {
		at := field.NewPath("data").Key(k)
		errs = append(errs, messages(at, k, validation.IsConfigMapKey(k))...)
		if _, ok := c.BinaryData[k]; ok {
			errs = append(errs, field.Invalid(at, k, "duplicate of key present in binaryData"))
		}
		size += len(c.Data[k])
	}
	for _, k := range slices.Sorted(maps.Keys(c.BinaryData)) {
		errs = append(errs, messages(field.NewPath("binaryData").Key(k), k, validation.IsConfigMapKey(k))...)
		size += len(c.BinaryData[k])
	}
	if size > corev1.MaxSecretSize {
		errs = append(errs, field.TooLong(field.NewPath(""), "", corev1.MaxSecretSize))
	}
	return errs
}

// ValidateConfigMapUpdate checks a change of a config map, of which nothing may
// change once immutable is set.
func ValidateConfigMapUpdate(c, old *corev1.ConfigMap) field.ErrorList {
	var errs field.ErrorList
	if deref(old.Immutable) {
		if !deref(c.Immutable) {
			errs = append(errs, field.Forbidden(field.NewPath("immutable"), immutableData))
		}
		if !equal(c.Data, old.Data) {
			errs = append(errs, field.Forbidden(field.NewPath("data"), immutableData))
		}
		if !equal(c.BinaryData, old.BinaryData) {
			errs = append(errs, field.Forbidden(field.NewPath("binaryData"), immutableData))
		}
	}
	return append(errs, ValidateConfigMap(c)...)
}

// ValidateServiceAccount has no rule beyond those for metadata: what it refers
// to may come later or be left out.
func ValidateServiceAccount(*corev1.ServiceAccount) field.ErrorList { return nil }
